"""A request's way through, readable from top to bottom: route, try the candidates in order, pass the answer on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from adapters.errors import EngineError, Interrupted, Loading, Rejected
from gateway.attempt import Attempt
from gateway.client import EventStream, Send, send_body
from gateway.errors import ApiError, from_engine_error
from gateway.exchange import Exchange
from gateway.fleet import Fleet
from gateway.refusal import all_failed, no_candidate, stopping, too_late
from policies.deadline import misses_deadline
from policies.types import Candidate

Deliver = Callable[[Attempt], Awaitable[None]]


async def serve(exchange: Exchange, fleet: Fleet, send: Send, keepalive_s: float) -> None:
    """Answer one request. Raises ``ApiError`` as long as nothing has been sent; afterwards errors are stream events."""
    await _decide(exchange, fleet)
    if exchange.incoming.stream:
        await _serve_stream(exchange, fleet, send, keepalive_s)
    else:
        await _serve_whole(exchange, fleet, send)


async def fetch(exchange: Exchange, fleet: Fleet, deliver: Deliver) -> None:
    """Have one request answered into ``deliver``, which may be called for several attempts. Raises ``ApiError``."""
    await _decide(exchange, fleet)
    await _try_candidates(exchange, fleet, deliver)


async def _decide(exchange: Exchange, fleet: Fleet) -> None:
    """Route a request. Raises ``ApiError`` when nobody can serve it."""
    facts = fleet.facts(exchange.incoming, exchange.wishes, exchange.left_s())
    exchange.facts = await fleet.exact(facts, exchange.incoming)
    exchange.decision = fleet.route(exchange.facts)
    exchange.routed_at = asyncio.get_running_loop().time()
    if exchange.decision.chosen is None:
        raise no_candidate(exchange.facts, exchange.decision, fleet.models())
    if (late := misses_deadline(exchange.decision, exchange.facts)) is not None:
        best = next(candidate for candidate in exchange.decision.candidates if candidate.estimate is late)
        raise too_late(exchange.facts, best, fleet.alone(exchange.facts, best.deployment))


async def _serve_stream(exchange: Exchange, fleet: Fleet, send: Send, keepalive_s: float) -> None:
    stream = EventStream(send, exchange.headers, keepalive_s)
    await write_stream(stream, _try_candidates(exchange, fleet, lambda attempt: _forward(attempt, stream)), fleet)


async def write_stream(stream: EventStream, writing: Awaitable[None], fleet: Fleet) -> bool:
    """Let ``writing`` fill a stream, and end it. Once it has begun, what goes wrong is one of its events.

    Returns whether nothing went wrong.
    Raises ``ApiError`` as long as it has not begun; one that ``writing`` never began is left so.
    """
    went_well = True
    try:
        await writing
    except ApiError as error:
        if not stream.started:
            raise
        went_well = False
        await stream.write(error.event())
    except asyncio.CancelledError:
        if stream.started and fleet.stopping:
            await stream.write(stopping().event())
            await stream.end()
        raise
    finally:
        await stream.aclose()
    if stream.started:
        await stream.end()
    return went_well


async def _forward(attempt: Attempt, stream: EventStream) -> None:
    """Pass an answer on, chunk by chunk, as the engine sends it."""
    while (data := await attempt.read()) is not None:
        if data:
            attempt.delivered = True
            await stream.write(data)


async def _serve_whole(exchange: Exchange, fleet: Fleet, send: Send) -> None:
    body = b""

    async def collect(attempt: Attempt) -> None:
        nonlocal body
        body = await collect_body(attempt)

    await _try_candidates(exchange, fleet, collect)
    await send_body(send, 200, exchange.headers(), body)


class Readable(Protocol):
    """An answer that comes piece by piece."""

    async def read(self) -> bytes | None:
        """Return the next bytes, ``None`` at the end."""


async def collect_body(source: Readable) -> bytes:
    """Read an answer to its end and return it as one body."""
    pieces = []
    while (data := await source.read()) is not None:
        pieces.append(data)
    return b"".join(pieces)


async def _try_candidates(exchange: Exchange, fleet: Fleet, deliver: Deliver) -> None:
    """Try the candidates in order until one has answered. Raises ``ApiError`` when none has.

    Another candidate is tried only while the client has no byte of an answer, within the client's deadline and the
    retry budget. When all have failed it is decided anew without them: a precision that came too late before may serve
    now. A request that found nothing but loading engines waits for the first of them, once.
    """
    assert exchange.decision is not None
    failures: list[EngineError] = []
    failed: set[str] = set()
    loading: Candidate | None = None
    candidates = exchange.decision.candidates
    while candidates:
        for candidate in candidates:
            failed.add(candidate.deployment.id)
            if failures and not exchange.has_time_for(candidate.estimate):
                continue
            if failures and not fleet.may_retry(failures[-1]):
                raise all_failed(failures)
            failure = await _try(exchange, fleet, candidate, deliver)
            if failure is None:
                return
            failures.append(failure)
            if loading is None and isinstance(failure, Loading):
                loading = candidate
        candidates = fleet.route(exchange.facts, without=failed).candidates
    if loading is not None and await fleet.wait_until_loaded(loading.deployment, exchange.left_s()):
        failure = await _try(exchange, fleet, loading, deliver)
        if failure is None:
            return
        failures.append(failure)
    raise all_failed(failures)


async def _try(exchange: Exchange, fleet: Fleet, candidate: Candidate, deliver: Deliver) -> EngineError | None:
    """Make one attempt. Returns the fault after which another candidate may be tried, ``None`` when it is answered.

    Raises ``ApiError`` for a fault that no other candidate could mend.
    """
    try:
        attempt = fleet.begin(exchange, candidate)
    except EngineError as error:
        return error
    try:
        await attempt.open()
        await deliver(attempt)
    except EngineError as error:
        attempt.fail(error)
        elsewhere = error.retryable or (isinstance(error, Rejected) and error.elsewhere)
        if attempt.delivered or not (elsewhere or isinstance(error, Interrupted)):
            raise from_engine_error(error) from error
        return error
    except BaseException:
        attempt.cancel()
        raise
    attempt.done()
    return None
