"""A request's place in a trace: W3C trace context in and out, with ids that cost next to nothing."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Final

_TRACEPARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_TRACE: Final = b"0" * 32
_NO_SPAN: Final = b"0" * 16
_LOW_64: Final = (1 << 64) - 1

_random: Final = random.Random()


def parent_of(headers: Mapping[bytes, bytes]) -> tuple[str, str, bool] | None:
    """Return trace id, span id and whether it is sampled, from a ``traceparent``; ``None`` without a valid one."""
    value = headers.get(b"traceparent")
    return None if value is None else _read(value)


def _read(traceparent: bytes) -> tuple[str, str, bool] | None:
    match = _TRACEPARENT.fullmatch(traceparent.strip())
    if match is None:
        return None
    version, trace, span, flags, more = match.groups()
    if version == b"ff" or (version == b"00" and more) or trace == _NO_TRACE or span == _NO_SPAN:
        return None
    return trace.decode(), span.decode(), bool(int(flags, 16) & 1)


def new_span_id() -> str:
    """Return 16 hexadecimal digits, never all 0."""
    return f"{_random.getrandbits(64) or 1:016x}"


class Trace:
    """One request's trace. ``parent_id`` is the caller's span, "" without one; ``span_id`` that of the request itself.

    ``sampled`` is the decision at the beginning: the caller's, else by a share of all trace ids.
    """

    __slots__ = ("parent_id", "sampled", "span_id", "trace_id")

    def __init__(self, trace_id: str, span_id: str, parent_id: str, *, sampled: bool) -> None:
        self.trace_id = trace_id
        self.span_id = span_id
        self.parent_id = parent_id
        self.sampled = sampled

    @classmethod
    def begin(cls, headers: Mapping[bytes, bytes], below: int) -> Trace:
        """Continue the caller's trace or begin one, which is sampled when its id's lower half is less than ``below``.

        That is OpenTelemetry's ``TraceIdRatioBased`` with a ratio of ``below / 2**64``, so that others in the same
        trace who sample by the same ratio decide alike.
        """
        parent = parent_of(headers)
        if parent is not None:
            trace_id, parent_id, sampled = parent
            return cls(trace_id, new_span_id(), parent_id, sampled=sampled)
        id_ = _random.getrandbits(128) or 1
        return cls(f"{id_:032x}", new_span_id(), "", sampled=id_ & _LOW_64 < below)

    @classmethod
    def named(cls, traceparent: str) -> Trace | None:
        """Return the place that a ``traceparent`` names; ``None`` for one that names none."""
        read = _read(traceparent.encode())
        return None if read is None else cls(read[0], read[1], "", sampled=read[2])

    @property
    def traceparent(self) -> str:
        """What names this place to others."""
        return self._traceparent(self.span_id)

    def call(self, headers: tuple[tuple[str, str], ...]) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Return a new span's id for one call to an engine, and ``headers`` with the ``traceparent`` that names it."""
        span_id = new_span_id()
        return span_id, (*headers, ("traceparent", self._traceparent(span_id)))

    def _traceparent(self, span_id: str) -> str:
        return f"00-{self.trace_id}-{span_id}-{'01' if self.sampled else '00'}"
