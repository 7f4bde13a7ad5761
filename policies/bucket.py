"""A bucket of tokens: how often something may happen, with room for a burst."""

from __future__ import annotations


class Bucket:
    """Fills by ``per_s`` tokens a second up to ``most``, and begins full. Times are the caller's monotonic seconds."""

    __slots__ = ("_at", "_most", "_per_s", "_tokens")

    def __init__(self, *, per_s: float, most: float) -> None:
        self._per_s = per_s
        self._most = most
        self._tokens = most
        self._at: float | None = None

    def add(self, tokens: float, now: float) -> None:
        """Put tokens in; what does not fit is lost."""
        if self._at is not None:
            tokens += self._per_s * max(0.0, now - self._at)
        self._at = now
        self._tokens = min(self._most, self._tokens + tokens)

    def take(self, now: float) -> bool:
        """Take one token. Returns whether there was one."""
        self.add(0.0, now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
