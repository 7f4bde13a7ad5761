"""A budget for retries, so that they never multiply the load of a fleet that is failing."""

from __future__ import annotations


class RetryBudget:
    """Retries may be a fifth of the requests, and one per second besides, so that a quiet gateway can retry too.

    A bucket of tokens: a request adds ``ratio``, a second adds ``per_s``, a retry takes 1; it never holds more than
    ``most``.
    """

    __slots__ = ("_at", "_most", "_per_s", "_ratio", "_tokens")

    def __init__(self, *, ratio: float = 0.2, per_s: float = 1.0, most: float = 20.0) -> None:
        self._ratio = ratio
        self._per_s = per_s
        self._most = most
        self._tokens = most
        self._at: float | None = None

    def request(self, now: float) -> None:
        """Count a request that came from a client."""
        self._refill(now)
        self._tokens = min(self._most, self._tokens + self._ratio)

    def spend(self, now: float) -> bool:
        """Take one retry from the budget. Returns whether there was one."""
        self._refill(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def _refill(self, now: float) -> None:
        if self._at is not None:
            self._tokens = min(self._most, self._tokens + self._per_s * max(0.0, now - self._at))
        self._at = now
