"""What is read from an engine's answer to a measurement, and when that answer is not normal."""

from __future__ import annotations

import pytest

from measure.output import embedding_faults, streamed_text, text_faults


@pytest.mark.parametrize(
    ("events", "text"),
    [
        (b'data: {"choices":[{"delta":{"role":"assistant","content":null}}]}\n\n', ""),
        (
            b'data: {"choices":[{"delta":{"content":"Hel"}}]}\n\ndata:{"choices":[{"delta":{"content":"lo"}}]}\n\n',
            "Hello",
        ),
        (b'data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}\r\n\r\ndata: [DONE]\r\n\r\n', "hm"),
        (b': a comment\n\ndata: {"choices":[{"text":"plain"}]}\n\ndata: {"choices":[],"usage":{}}\n\n', "plain"),
        (b"data: 3\n\ndata: nonsense\n\n", ""),
    ],
)
def test_the_text_of_a_stream_is_found(events: bytes, text: str) -> None:
    assert streamed_text(events) == text


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("An ordinary answer.", ()),
        ("Ja, natürlich! 好的", ()),
        ("", ("empty",)),
        (" \n\t ", ("empty",)),
        ("!!!!!!!!!!!!!!!!", ("loop",)),
        ("!!!", ()),
        ("half a ch\ufffdaracter", ("broken Unicode",)),
        ("cut at the end \ufffd", ()),
        ("\ufffd\ufffd\ufffd", ("broken Unicode",)),
    ],
)
def test_faults_of_a_text_are_named(text: str, faults: tuple[str, ...]) -> None:
    assert text_faults(text) == faults


@pytest.mark.parametrize(
    ("body", "faults"),
    [
        (b'{"data":[{"embedding":[0.1,0.2]}]}', ()),
        (b'{"data":[{"embedding":"AAAA"}]}', ()),
        (b'{"data":[{"embedding":[]}]}', ("empty",)),
        (b'{"data":[]}', ("empty",)),
        (b"[]", ("empty",)),
        (b"", ("empty",)),
    ],
)
def test_an_embedding_without_a_vector_is_a_fault(body: bytes, faults: tuple[str, ...]) -> None:
    assert embedding_faults(body) == faults
