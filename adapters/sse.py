"""Server-sent events as bytes: cut a stream into whole events, and read one event's data.

Framing follows the WHATWG HTML standard, "server-sent events", with one liberty: an event that the end of the stream
leaves without its blank line still counts, since engines end so.
"""

from __future__ import annotations

from typing import Final

from adapters.errors import Broken

MAX_EVENT_BYTES: Final = 8 * 1024 * 1024
"""An event that grows beyond this without ending is nonsense: the bound of what is held back."""

_BOM: Final = b"\xef\xbb\xbf"


class EventSplitter:
    """Turns pieces of a stream, cut anywhere, into blobs of whole events with LF line ends.

    The usual piece (whole events, LF, nothing held back) is returned as it is, without a copy.
    """

    __slots__ = ("_after_cr", "_at_start", "_max_bytes", "_plain", "_tail")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_event_bytes
        self._tail = bytearray()
        self._after_cr = False
        self._at_start = True
        self._plain = False  # nothing is held back, and the next byte begins an event

    def feed(self, data: bytes) -> bytes:
        """Return the events that ``data`` completes, or ``b""``. Raises Broken for an event without end."""
        if self._plain and data.endswith(b"\n\n") and b"\r" not in data:
            return data
        return self._feed_odd(data)

    def end(self) -> bytes:
        """Return the event that the end of the stream completes, or ``b""``."""
        tail = bytes(self._tail).rstrip(b"\n")
        self._tail.clear()
        return tail + b"\n\n" if tail else b""

    def _feed_odd(self, data: bytes) -> bytes:
        self._plain = False
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")  # the second half of a CRLF
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        tail = self._tail
        searched = max(len(tail) - 1, 0)
        tail += data
        if self._at_start:
            if len(tail) < len(_BOM) and _BOM.startswith(tail):
                return b""
            if tail.startswith(_BOM):
                del tail[: len(_BOM)]
            self._at_start = False
            searched = 0
        cut = tail.rfind(b"\n\n", searched)
        if cut < 0:
            if len(tail) > self._max_bytes:
                raise Broken(f"the engine sent an event of more than {self._max_bytes} bytes")
            return b""
        events = bytes(tail[: cut + 2])
        del tail[: cut + 2]
        self._plain = not tail and not self._after_cr
        return events


def split_events(blob: bytes) -> list[bytes]:
    """The events of a blob from ``EventSplitter``, each with its blank line."""
    return [event + b"\n\n" for event in blob.split(b"\n\n") if event.strip(b"\n")]


def event_data(event: bytes) -> bytes | None:
    """The data of one event: its ``data`` lines joined by LF; ``None`` when it has none (a comment)."""
    if event.startswith(b"data: ") and event.find(b"\n") >= len(event) - 2:  # the usual single line
        return event[6:].rstrip(b"\n")
    return event_field(event, b"data")


def event_field(event: bytes, name: bytes) -> bytes | None:
    """The values of a field's lines joined by LF, or ``None`` when the event has no such line.

    A name of ``b""`` gives the comments.
    """
    values = []
    for line in event.split(b"\n"):
        field, colon, value = line.partition(b":")
        if field == name and (colon or field):
            values.append(value.removeprefix(b" "))
    return b"\n".join(values) if values else None
