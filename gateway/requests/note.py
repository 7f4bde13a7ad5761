"""What is noted of a request at its end: references and numbers only, so that it takes microseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.exchange import Exchange
from policies.types import Candidate, RequestFacts
from policies.value import value

if TYPE_CHECKING:
    from adapters.base import Outcome
    from gateway.attempt import Attempt
    from policies.lease import Lease

LONGEST_TEXT = 1000
"""Characters of a message or name that are kept."""


@value
class TryNote:
    """One attempt; times are ``loop.time()``, 0 where they were not reached."""

    candidate: Candidate
    outcome: Outcome | None
    lease: Lease
    chosen_at: float
    started_at: float
    ended_at: float
    was_cold: bool
    error: str
    message: str


@value
class Note:
    """One request. It holds no part of the body, and no task or exception that would."""

    request_id: str
    arrived_at: float
    ended_at: float
    operation: str
    model: str
    caller: str
    streamed: bool
    ended: str
    facts: RequestFacts
    status: int
    error: str
    error_code: str
    cache: bytes
    is_flight: bool
    kept_by: str
    reason: str
    tries: tuple[TryNote, ...]
    is_routed: bool
    first_token_at: float | None
    read_s: float
    waited_s: float
    lookup_s: float
    client_s: float
    outside: tuple[tuple[str, float], ...]


def note(exchange: Exchange, now: float = 0.0) -> Note:
    """Note a request that has ended, or (with ``now``) one that runs."""
    incoming, wishes, error, kept = exchange.incoming, exchange.wishes, exchange.error, exchange.kept
    return Note(
        exchange.request_id,
        exchange.arrived_at,
        now or exchange.ended_at,
        incoming.operation.value,
        incoming.model[:LONGEST_TEXT],
        wishes.caller,
        incoming.stream,
        "running" if now else exchange.ended,
        exchange.facts,
        200 if error is None else error.status,
        "" if error is None else error.message[:LONGEST_TEXT],
        "" if error is None else error.code or "",
        exchange.cache,
        bool(exchange.cache_key),
        "" if kept is None else kept.headers[0][1].decode(),
        exchange.reason,
        tuple([_try(attempt) for attempt in exchange.tries]),
        exchange.routed_at > 0.0,
        exchange.first_token_at,
        exchange.read_s,
        exchange.waited_s,
        exchange.lookup_s,
        exchange.client_s,
        wishes.outside,
    )


def _try(attempt: Attempt) -> TryNote:
    error = attempt.error
    return TryNote(
        attempt.candidate,
        attempt.outcome,
        attempt.lease,
        attempt.chosen_at,
        attempt.started_at,
        attempt.ended_at,
        attempt.was_cold,
        "" if error is None else type(error).__name__,
        "" if error is None else error.message[:LONGEST_TEXT],
    )
