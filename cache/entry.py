"""One kept answer: what the engine sent, with its chunk boundaries and pace, and what it cost to make."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec


class Entry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An answer as it came. Times are seconds; ``created`` and ``expires`` on the Unix clock.

    ``body`` is a whole JSON body, or, when ``streamed``, all server-sent events with the usage and ``[DONE]``; then
    ``cuts`` are the ends of the pieces in which they came, and ``pace_ms`` when each came after the first. ``model`` is
    the name in ``body``: the one that the first caller asked for. Unknown counts are ``None``.
    """

    model: str
    deployment: str
    engine: str
    precision: str
    created: float
    expires: float
    streamed: bool
    body: bytes
    cuts: tuple[int, ...] = ()
    pace_ms: tuple[int, ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    took_s: float = 0.0
    """What the engine took from request to end: what a hit saves."""
    model_name: str = ""
    """The logical model, for statistics."""
    whole: bytes = b""
    """The one JSON body that the events of ``body`` become, where somebody has wanted it already."""

    @property
    def size(self) -> int:
        """Bytes in memory, roughly."""
        return len(self.body) + len(self.whole) + 72 * len(self.cuts) + 600

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """Return when each piece came, in ms after the first, and the piece."""
        if not self.cuts:
            yield 0, self.body
            return
        start = 0
        for end, at_ms in itertools.zip_longest(self.cuts, self.pace_ms, fillvalue=0):
            yield at_ms, self.body[start:end]
            start = end
