"""Cutting a byte stream into events, whatever way it arrives."""

from __future__ import annotations

import pytest

from adapters.errors import Broken
from adapters.sse import EventSplitter, event_data, event_field, split_events


def collect(stream: bytes, size: int) -> list[bytes | None]:
    splitter = EventSplitter()
    blobs = [splitter.feed(stream[at : at + size]) for at in range(0, len(stream), size)]
    return [event_data(event) for blob in [*blobs, splitter.end()] for event in split_events(blob)]


STREAMS = {
    "lf": (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
    "crlf": (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
    "lone cr": (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
    "mixed line ends": (b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"]),
    "no space after the colon": (b"data:a\n\n", [b"a"]),
    "only one space is dropped": (b"data:  a\n\n", [b" a"]),
    "several data lines": (b"data: a\ndata: b\n\n", [b"a\nb"]),
    "an empty data line": (b"data\ndata: b\n\n", [b"\nb"]),
    "comments": (b": hello\n\ndata: a\n: in between\n\n", [None, b"a"]),
    "other fields": (b"event: x\nid: 7\nretry: 3\ndata: a\n\n", [b"a"]),
    "no final blank line": (b"data: a\n\ndata: b", [b"a", b"b"]),
    "no final blank line, crlf": (b"data: a\r\n\r\ndata: b\r\n", [b"a", b"b"]),
    "many blank lines": (b"\n\n\ndata: a\n\n\n\n\ndata: b\n\n\n", [b"a", b"b"]),
    "byte order mark": (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
    "only a byte order mark's beginning": (b"\xef\xbb", [None]),
    "text beyond ascii": ("data: Grüße 🙂\n\n".encode(), ["Grüße 🙂".encode()]),
    "data that looks like a field": (b"data: data: a\n\n", [b"data: a"]),
    "nothing": (b"", []),
}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
@pytest.mark.parametrize("name", STREAMS)
def test_gives_the_same_events_however_the_stream_is_cut(name: str, size: int) -> None:
    stream, expected = STREAMS[name]
    assert collect(stream, size) == expected


def test_the_usual_piece_is_passed_on_without_a_copy() -> None:
    splitter = EventSplitter()
    splitter.feed(b"data: first\n\n")
    piece = b"data: a\n\ndata: b\n\n"
    assert splitter.feed(piece) is piece


def test_holds_back_an_event_until_it_is_whole() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: a\n\ndata: b") == b"data: a\n\n"
    assert splitter.feed(b"c\n") == b""
    assert splitter.feed(b"\ndata: d\n\n") == b"data: bc\n\ndata: d\n\n"
    assert splitter.end() == b""


def test_an_event_without_end_is_refused_at_the_bound() -> None:
    splitter = EventSplitter(max_event_bytes=100)
    for _ in range(11):
        assert splitter.feed(b"data: abc") == b""
    with pytest.raises(Broken, match="more than 100 bytes"):
        splitter.feed(b"data: abc")


def test_many_small_events_are_not_bounded() -> None:
    splitter = EventSplitter(max_event_bytes=100)
    assert len(split_events(splitter.feed(b"data: abc\n\n" * 1000))) == 1000


def test_reads_other_fields() -> None:
    assert event_field(b"event: error\ndata: x\n\n", b"event") == b"error"
    assert event_field(b": keepalive 1/2\n\n", b"") == b"keepalive 1/2"
    assert event_field(b"data: x\n\n", b"event") is None
