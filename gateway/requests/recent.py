"""The last requests that have ended, for who watches: their figures, never their text. In memory, from the start on."""

from __future__ import annotations

import time
from collections import deque
from itertools import islice

import msgspec

from gateway.exchange import Exchange

MOST = 400
"""Requests that are kept."""
LONGEST_TEXT = 300


class Finished(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One request that has ended. Times are seconds, ``at`` that of its end since the epoch, ``None`` where unknown.

    ``number`` grows by one with each request. ``ttft_s`` is counted from its arrival, as its client saw it.
    """

    number: int
    id: str
    at: float
    model: str
    operation: str
    ended: str
    total_s: float
    deployment: str = ""
    caller: str = ""
    reason: str = ""
    error: str = ""
    cache: str = ""
    attempts: int = 0
    waited_s: float = 0.0
    ttft_s: float | None = None
    predicted_ttft_s: float | None = None
    predicted_total_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    decode_per_s: float | None = None


class Recent:
    """A witness of all requests that keeps the last ``MOST``."""

    def __init__(self) -> None:
        self._kept: deque[Finished] = deque(maxlen=MOST)
        self.count = 0
        """Requests that have ended since the start."""

    def ended(self, exchange: Exchange) -> None:
        """Keep a request."""
        self.count += 1
        self._kept.append(_finished(self.count, exchange))

    def after(self, number: int) -> list[Finished]:
        """Return those whose number is greater, oldest first, as far as they are still kept."""
        new = min(self.count - number, len(self._kept))
        return list(islice(self._kept, len(self._kept) - new, None)) if new > 0 else []

    def since(self, at: float) -> tuple[list[Finished], bool]:
        """Return those that have ended since then, oldest first, and whether these are all of them."""
        found = [each for each in self._kept if each.at >= at]
        return found, len(found) < MOST


def _finished(number: int, exchange: Exchange) -> Finished:
    told = {name: value.decode() for name, value in exchange.kept.headers} if exchange.kept is not None else {}
    deployment, estimate, error, first = (
        exchange.deployment,
        exchange.estimate,
        exchange.error,
        exchange.first_token_at,
    )
    outcome = exchange.tries[-1].outcome if exchange.tries else None
    tpot_s = None if outcome is None else outcome.tpot_s
    return Finished(
        number=number,
        id=exchange.request_id,
        at=round(time.time(), 3),
        model=exchange.incoming.model[:LONGEST_TEXT],
        operation=exchange.incoming.operation.value,
        ended=exchange.ended,
        total_s=round(exchange.ended_at - exchange.arrived_at, 4),
        deployment=deployment.id if deployment is not None else told.get(b"x-paceline-deployment", ""),
        caller=exchange.wishes.caller,
        reason=(exchange.reason or told.get(b"x-paceline-reason", ""))[:LONGEST_TEXT],
        error="" if error is None else error.message[:LONGEST_TEXT],
        cache=exchange.cache.decode(),
        attempts=exchange.attempts,
        waited_s=round(exchange.waited_s, 4),
        ttft_s=None if first is None else round(first - exchange.arrived_at, 4),
        predicted_ttft_s=None if estimate is None else round(estimate.ttft_s, 4),
        predicted_total_s=None if estimate is None else round(estimate.total_s, 4),
        prompt_tokens=None if outcome is None else outcome.prompt_tokens,
        output_tokens=None if outcome is None else outcome.written or None,
        decode_per_s=round(1.0 / tpot_s, 1) if tpot_s else None,
    )
