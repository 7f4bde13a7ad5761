"""Which requests' traces are kept: decided at a request's end, when it is known what became of it."""

from __future__ import annotations

from typing import Final

from gateway.exchange import Exchange

SAMPLED: Final = "sampled"
FAILED: Final = "failed"
SLOW: Final = "slow"

_MUCH_SLOWER: Final = 2.0
_MUCH_SLOWER_S: Final = 1.0


class Sampling:
    """Keeps those that their beginning chose, and all that failed or were slow.

    Failed is what went wrong here or in an engine, at an attempt that was made good as well; a request that was wrong
    itself (400, 429) did not fail.
    """

    def __init__(self, share: float, slow_s: float) -> None:
        self.below = round(share * 2.0**64)
        """Trace ids whose lower half is less than this are sampled."""
        self._slow_s = slow_s

    def why(self, exchange: Exchange) -> str:
        """Return why a request's trace is kept, "" when it is not."""
        if has_failed(exchange):
            return FAILED
        took_s = exchange.ended_at - exchange.arrived_at
        if took_s >= self._slow_s:
            return SLOW
        estimate = exchange.estimate
        if estimate is not None and took_s > _MUCH_SLOWER * estimate.total_s + _MUCH_SLOWER_S:
            return SLOW
        return SAMPLED if exchange.trace is not None and exchange.trace.sampled else ""


def has_failed(exchange: Exchange) -> bool:
    """Return whether something went wrong that was not the client's own doing."""
    error = exchange.error
    if error is not None and error.status >= 500:
        return True
    return any(each.error is not None and each.error.counts_for_breaker for each in exchange.tries)
