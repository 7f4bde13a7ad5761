"""The call behind a flight: looked up in the shared store first, then followed in another gateway, or made here."""

from __future__ import annotations

import asyncio

from adapters.base import Outcome
from adapters.errors import EngineError
from cache.breaker import StoreError
from cache.flight import Flight
from cache.head import Head, decode_head
from cache.replicas import LeaderGone
from gateway.attempt import Attempt
from gateway.caching import Caching, Ticket, described
from gateway.errors import ApiError
from gateway.exchange import Exchange
from gateway.fleet import Fleet
from gateway.pipeline import fetch

_MOST_LEADERS = 3
"""How many leaders in other gateways are followed, one after the other's death, before an engine is asked here."""


class Call:
    """Fills one flight. ``exchange`` is the request that began it, which may have left before the end.

    ``is_shared``: other gateways may read along.
    """

    def __init__(self, exchange: Exchange, ticket: Ticket, fleet: Fleet, caching: Caching, *, is_shared: bool) -> None:
        self._exchange = exchange
        self._ticket = ticket
        self._fleet = fleet
        self._caching = caching
        self._replicas = caching.replicas if is_shared else None
        self._lease = ticket.key.lease(ticket.fingerprints) if self._replicas is not None else ""
        self._outcome = Outcome()
        self._took_s = 0.0

    async def drive(self, flight: Flight) -> None:
        """Bring the flight to its end. Raises ``ApiError``."""
        holder = await self._look(flight) if self._ticket.terms.read else ""
        if holder is None:
            return
        if holder and self._replicas is not None:
            self._replicas.lead(holder, self._ticket.key, self._lease, flight)
        is_given_back = False
        try:
            is_given_back = await self._ask(flight, holder)
        finally:
            if holder and self._replicas is not None:
                self._replicas.release(holder, is_given_back=is_given_back)

    async def _look(self, flight: Flight) -> str | None:
        """Take the answer from the shared store, or from a gateway that calls for it already.

        Returns ``None`` when that is done, else the name under which we hold the lease, ``""`` without one.
        """
        ticket, replicas = self._ticket, self._replicas
        clock = asyncio.get_running_loop().time
        for _ in range(_MOST_LEADERS):
            holder = replicas.new_holder() if replicas is not None else ""
            begun = clock()
            answered = await self._caching.stores.find(
                ticket.names, max_age_s=ticket.terms.max_age_s, lease=self._lease, holder=holder
            )
            self._exchange.lookup_s += clock() - begun
            if answered.entry is not None:
                flight.take_off(answered.entry)
                return None
            if answered.failed:
                self._exchange.cache = b"bypass"
                self._caching.counts(ticket).bypassed += 1
                return ""
            if answered.holder in ("", holder):
                return answered.holder
            try:
                await self._follow(flight, answered.holder)
            except (LeaderGone, StoreError):
                if flight.times:
                    raise ApiError(
                        502, "the gateway that called the engine is gone", code="engine_interrupted"
                    ) from None
                continue
            self._exchange.cache = b"coalesced"
            self._caching.counts(ticket).coalesced += 1
            return None
        return ""

    async def _follow(self, flight: Flight, holder: str) -> None:
        """Pass on what another gateway gets. Raises ``LeaderGone`` also when its call has failed before any output."""
        assert self._replicas is not None
        async for part in self._replicas.follow(self._ticket.key, self._lease, holder):
            if part.kind == "h":
                flight.take_off(decode_head(part.data))
                self._exchange.cache = b"coalesced"
            elif part.kind == "d":
                await flight.add(part.data)
            elif part.data:
                if not flight.times:
                    raise LeaderGone
                raise described(part.data)

    async def _ask(self, flight: Flight, holder: str) -> bool:
        """Have an engine answer, and keep what it said. Returns whether the lease is given back with that."""

        async def deliver(attempt: Attempt) -> None:
            await self._deliver(attempt, flight)

        self._caching.counts(self._ticket).misses += 1
        await fetch(self._exchange, self._fleet, deliver)
        lease = self._lease, holder
        return self._caching.keep(self._ticket, self._exchange, flight, self._outcome, self._took_s, lease)

    async def _deliver(self, attempt: Attempt, flight: Flight) -> None:
        if self._exchange.incoming.stream:
            await self._pass_on(attempt, flight)
        else:
            await self._gather(attempt, flight)
        assert attempt.outcome is not None
        self._outcome = attempt.outcome
        self._took_s = flight.times[-1] - attempt.started_at

    async def _pass_on(self, attempt: Attempt, flight: Flight) -> None:
        while (data := await attempt.read()) is not None:
            if data:
                if not attempt.delivered:
                    attempt.delivered = True
                    flight.take_off(self._head(streamed=True))
                await flight.add(data)

    async def _gather(self, attempt: Attempt, flight: Flight) -> None:
        """For one who wants a body. The events that it is joined from go to those who want a stream, as they come.

        As long as nobody has got one, the call can be made again elsewhere, as it could for the body alone.
        """
        events: list[bytes] = []
        attempt.keep_events(events)
        body = []
        try:
            while (data := await attempt.read()) is not None:
                body.append(data)
                if events and not flight.times:
                    flight.take_off(self._head(streamed=True))
                for event in events:
                    await flight.add(event)
                events.clear()
        except EngineError:
            attempt.delivered = flight.taken
            if not flight.taken:
                flight.begin_anew()
            raise
        if flight.times:
            flight.whole = b"".join(body)
        else:
            flight.take_off(self._head(streamed=False))
            await flight.add(b"".join(body))

    def _head(self, *, streamed: bool) -> Head:
        incoming, deployment, trace = self._exchange.incoming, self._exchange.deployment, self._exchange.trace
        assert deployment is not None
        leader = "" if trace is None else trace.traceparent
        return Head(incoming.model, deployment.id, deployment.engine, deployment.precision, streamed, leader)
