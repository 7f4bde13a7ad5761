"""A cacheable request's way: from memory, from the shared store, along with an equal one, or from an engine."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from adapters.join import Misshapen
from cache.entry import Entry
from cache.flight import Abandoned, Flight, Reader
from cache.head import Head
from gateway.caching import Caching, Ticket
from gateway.client import EventStream, Send, send_body
from gateway.embedding import batch_of
from gateway.errors import ApiError
from gateway.exchange import Exchange, Kept, header_text, who
from gateway.flying import Call
from gateway.pipeline import collect_body, serve, write_stream
from gateway.refusal import stopping
from gateway.replay import as_body, as_events, joined, parted, renamed, without_usage
from gateway.telemetry.trace import Trace
from policies.types import Operation

if TYPE_CHECKING:
    from gateway.house import House

COALESCED = "called for an equal request"
KEPT = "kept from an equal request"


async def serve_cached(exchange: Exchange, ticket: Ticket, house: House, caching: Caching, send: Send) -> None:
    """Answer one request; raises as ``pipeline.serve`` does. An answer from memory waits for no place."""
    try:
        await _serve_ticket(exchange, ticket, house, caching, send)
    except Misshapen as error:
        raise _only_in_its_form(exchange, error) from error


async def _serve_ticket(exchange: Exchange, ticket: Ticket, house: House, caching: Caching, send: Send) -> None:
    exchange.cache_key = ticket.shown
    terms, usage = ticket.terms, exchange.incoming.include_usage
    if exchange.incoming.operation is Operation.EMBEDDINGS:
        await _serve_embeddings(exchange, ticket, house, caching, send)
        return
    if terms.read and (entry := caching.stores.recall(ticket.names, terms.max_age_s)) is not None:
        await _replay(exchange, ticket, caching, entry, send)
        return
    async with house.admission.admitted(exchange.wishes.caller, exchange.left_s()) as exchange.waited_s:
        if terms.read and (entry := caching.stores.recall(ticket.names, terms.max_age_s)) is not None:
            await _replay(exchange, ticket, caching, entry, send)  # answered while this one waited for its place
            return
        if terms.only:
            answered = await caching.stores.find(ticket.names, max_age_s=terms.max_age_s)
            if answered.entry is None:
                raise not_kept(exchange)
            await _replay(exchange, ticket, caching, answered.entry, send)
            return
        with _board(exchange, ticket, house, caching) as reader:
            if exchange.incoming.stream:
                stream = EventStream(send, exchange.headers, house.settings.server.keepalive_s)
                writing = _write_flight(stream, exchange, ticket, caching, reader, usage=usage)
                went_well = await write_stream(stream, writing, house.fleet)
            else:
                await _serve_whole(exchange, ticket, caching, reader, send)
                went_well = True
    exchange.ended = "done" if went_well else "failed"


async def _serve_embeddings(exchange: Exchange, ticket: Ticket, house: House, caching: Caching, send: Send) -> None:
    """Answer text by text: what is known is not asked for again."""
    batch = batch_of(exchange, ticket, caching)
    if batch is None:
        exchange.cache_key = b""
        async with house.admission.admitted(exchange.wishes.caller, exchange.left_s()) as exchange.waited_s:
            await serve(exchange, house.fleet, send, house.settings.server.keepalive_s)
        return
    batch.recall()
    if batch.knows_all():
        await _replay(exchange, ticket, caching, batch.entry(), send)
        return
    async with house.admission.admitted(exchange.wishes.caller, exchange.left_s()) as exchange.waited_s:
        if ticket.terms.only:
            await batch.find()
            if not batch.knows_all():
                raise not_kept(exchange)
            await _replay(exchange, ticket, caching, batch.entry(), send)
            return
        flights, name = caching.flights, (ticket.key.digest, ticket.fingerprints)
        is_shared = ticket.terms.read and exchange.wishes.deadline_s is None
        flight = flights.find(name) if is_shared else None
        if flight is not None:
            reader = _join(exchange, ticket, caching, flight)
        else:
            exchange.cache = b"miss"
            flight, reader = flights.begin(name if is_shared else object(), lambda each: batch.drive(each, house.fleet))
            flight.begun_by = exchange.trace
        with reader:
            await _serve_whole(exchange, ticket, caching, reader, send)
    exchange.ended = "done"


def not_kept(exchange: Exchange) -> ApiError:
    """The answer to a request that wants no engine to be asked, when its answer is not kept."""
    why = "is not in the cache" if exchange.cache_key else "cannot be in the cache"
    message = f"The answer to this request {why}, and no engine was to be asked for it."
    return ApiError(504, message, code="not_cached", headers=[(b"x-paceline-cache", b"miss")])


def _only_in_its_form(exchange: Exchange, error: Misshapen) -> ApiError:
    """The answer where an equal request's stream cannot become a body, or its body a stream."""
    form = "a stream" if exchange.incoming.stream else "one body"
    message = f"The engine's answer to an equal request has {error}: it cannot be given as {form}."
    return ApiError(502, f"{message} Ask again with 'x-paceline-cache: refresh'.", code="engine_failed")


def _board(exchange: Exchange, ticket: Ticket, house: House, caching: Caching) -> Reader:
    """Join the flight of an equal request, or begin one.

    In either form: a body is made of a stream's events, and a stream of those that a body is joined from, or of the
    body where its engine writes none. A request with a deadline, or for a fresh answer, has a flight of its own.
    """
    incoming, flights = exchange.incoming, caching.flights
    is_shared = ticket.terms.read and exchange.wishes.deadline_s is None
    name = (ticket.key.digest, ticket.fingerprints)
    if is_shared:
        flight = flights.find(name)
        if flight is not None:
            return _join(exchange, ticket, caching, flight)
    exchange.cache = b"miss"
    if incoming.stream:
        exchange.incoming = replace(incoming, include_usage=True)
    call = Call(exchange, ticket, house.fleet, caching, is_shared=is_shared)
    flight, reader = flights.begin(name if is_shared else object(), call.drive, patient=not incoming.stream)
    flight.begun_by = exchange.trace
    return reader


def _join(exchange: Exchange, ticket: Ticket, caching: Caching, flight: Flight) -> Reader:
    exchange.cache = b"coalesced"
    caching.counts(ticket).coalesced += 1
    if isinstance(flight.begun_by, Trace):
        exchange.leader = flight.begun_by
    return flight.join(patient=not exchange.incoming.stream)


async def _write_flight(
    stream: EventStream, exchange: Exchange, ticket: Ticket, caching: Caching, reader: Reader, *, usage: bool
) -> None:
    """Pass a flight on as it comes, or the entry that it turned out to be. Raises ``ApiError``."""
    incoming = exchange.incoming
    try:
        while (data := await reader.read()) is not None:
            head = _introduce(exchange, reader.flight)
            if not head.streamed:
                data = parted(data + await collect_body(reader), incoming.operation)
            data = renamed(data, head.model, incoming.model)
            if not usage:
                data = without_usage(data)
            if data:
                await stream.write(data)
    except Abandoned:
        raise stopping() from None
    if isinstance(reader.flight.head, Entry):
        exchange.incoming = replace(incoming, include_usage=usage)
        _note_hit(exchange, ticket, caching, reader.flight.head)
        await _write_entry(stream, exchange, reader.flight.head)


async def _serve_whole(exchange: Exchange, ticket: Ticket, caching: Caching, reader: Reader, send: Send) -> None:
    """Wait for a flight's end and send it as one body, or the entry that it turned out to be. Raises ``ApiError``."""
    try:
        body = await collect_body(reader)
    except Abandoned:
        raise stopping() from None
    if isinstance(reader.flight.head, Entry):
        await _replay(exchange, ticket, caching, reader.flight.head, send)
        return
    head = _introduce(exchange, reader.flight)
    if head.streamed:
        body = reader.flight.whole or joined(body, exchange.incoming.operation)
    await send_body(send, 200, exchange.headers(), renamed(body, head.model, exchange.incoming.model))


def _introduce(exchange: Exchange, flight: Flight) -> Head:
    """Note whose answer it is, in a request that has called no engine itself."""
    head = flight.head
    assert isinstance(head, Head)
    if exchange.deployment is None and exchange.kept is None:
        reason = (b"x-paceline-reason", header_text(COALESCED))
        exchange.kept = Kept((*who(head.deployment, head.engine, head.precision), reason))
        if head.leader:  # it may run in another gateway
            exchange.leader = Trace.named(head.leader) or exchange.leader
    return head


async def _replay(exchange: Exchange, ticket: Ticket, caching: Caching, entry: Entry, send: Send) -> None:
    """Answer from an entry."""
    incoming = exchange.incoming
    if not incoming.stream:
        entry = caching.with_whole(ticket, entry, incoming.operation)
    _note_hit(exchange, ticket, caching, entry)
    if not incoming.stream:
        await send_body(send, 200, exchange.headers(), as_body(entry, incoming.operation, incoming.model))
        return
    stream = EventStream(send, exchange.headers, _SILENCE_S)
    try:
        await _write_entry(stream, exchange, entry)
    finally:
        await stream.aclose()
    await stream.end()


def _note_hit(exchange: Exchange, ticket: Ticket, caching: Caching, entry: Entry) -> None:
    """Count it, and say in the headers whose answer it is."""
    caching.count_hit(ticket, entry)
    exchange.ended = "done"
    exchange.cache = b"hit"
    age = b"%d" % max(0, int(time.time() - entry.created))
    reason = (b"x-paceline-reason", header_text(KEPT))
    exchange.kept = Kept((*who(entry.deployment, entry.engine, entry.precision), reason, (b"age", age)))


async def _write_entry(stream: EventStream, exchange: Exchange, entry: Entry) -> None:
    incoming = exchange.incoming
    if exchange.wishes.paced and entry.pace_ms:
        await _write_paced(stream, exchange, entry)
    else:
        await stream.write(as_events(entry, incoming.operation, incoming.model, usage=incoming.include_usage))


_SILENCE_S = 60.0
"""No silence of a replay is that long; a paced one repeats the keep-alive's own pace."""


async def _write_paced(stream: EventStream, exchange: Exchange, entry: Entry) -> None:
    """Write each piece when it came, counted from the first."""
    incoming = exchange.incoming
    clock = asyncio.get_running_loop().time
    start = clock()
    for at_ms, piece in entry.pieces():
        await asyncio.sleep(start + at_ms / 1000 - clock())
        data = renamed(piece, entry.model, incoming.model)
        if not incoming.include_usage:
            data = without_usage(data)
        if data:
            await stream.write(data)
