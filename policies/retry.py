"""A budget for retries, so that they never multiply the load of a fleet that is failing."""

from __future__ import annotations

from policies.bucket import Bucket


class RetryBudget:
    """Retries may be a fifth of the requests, and one per second besides, so that a quiet gateway can retry too.

    A request adds ``ratio`` to the bucket, a second adds ``per_s``, a retry takes 1; it never holds more than ``most``.
    """

    __slots__ = ("_bucket", "_ratio")

    def __init__(self, *, ratio: float = 0.2, per_s: float = 1.0, most: float = 20.0) -> None:
        self._ratio = ratio
        self._bucket = Bucket(per_s=per_s, most=most)

    def request(self, now: float) -> None:
        """Count a request that came from a client."""
        self._bucket.add(self._ratio, now)

    def spend(self, now: float) -> bool:
        """Take one retry from the budget. Returns whether there was one."""
        return self._bucket.take(now)
