"""The cache as the gateway has it: what it may do for a request, under which names, and the stores behind it."""

from __future__ import annotations

import itertools
import re
import time
from typing import TYPE_CHECKING

import msgspec

from adapters.base import Outcome
from cache.address import parse_address
from cache.codec import Codec
from cache.embedded import FOLDER, EmbeddedServer, NoServer, find_server
from cache.entry import Entry
from cache.flight import Flight, Flights
from cache.head import Head
from cache.key import Key, Uncacheable, make_key
from cache.memory import MemoryStore
from cache.redis_store import RedisStore
from cache.replicas import Replicas
from cache.rules import Mode, Terms, is_cacheable, is_worth_keeping
from cache.statistics import Counts
from cache.stores import Stores, expiry
from gateway.acceptance import Acceptance
from gateway.errors import ApiError
from gateway.exchange import Exchange
from gateway.fleet import Fleet
from gateway.replay import joined
from gateway.settings import Settings
from gateway.settings_cache import EMBEDDED, CacheSettings
from gateway.settings_errors import Problem, SettingsError
from policies.types import Deployment, Operation
from policies.value import value

if TYPE_CHECKING:
    from gateway.embedded import EmbeddedValkey

_KEY_SHOWN = 16
_REASON = re.compile(rb'"finish_reason": ?"(\w+)"')
"""In JSON a quote inside of a text is escaped, so that no text can look like this."""


@value
class Ticket:
    """What the cache may do for one request. ``names`` are those of the entries that it may be given, best first."""

    key: Key
    model: str
    fingerprints: tuple[str, ...]
    names: tuple[str, ...]
    terms: Terms
    ttl_s: float

    @property
    def shown(self) -> bytes:
        """The beginning of the key, by which the entry can be found again."""
        return self.key.digest[:_KEY_SHOWN].encode()


class Caching:
    """Owns the stores and the flights. Raises ``SettingsError`` for keys of encryption that are not there."""

    def __init__(self, settings: Settings, fleet: Fleet) -> None:
        cache = settings.cache
        self._settings = cache
        self._modes = {name: each.cache.mode for name, each in settings.models.items() if each.cache.mode}
        self._lifetimes = {name: each.cache.ttl_s for name, each in settings.models.items() if each.cache.ttl_s}
        self._modes_of_keys = {key.name: key.cache for key in settings.auth.keys if key.cache}
        self._group_of = {key: name for name, keys in cache.groups.items() for key in keys}
        self._fleet = fleet
        self._acceptance = Acceptance(fleet)
        server = remote = codec = None
        self.replicas: Replicas | None = None
        self._embedded: EmbeddedValkey | None = None
        if cache.url:
            server = _embedded(settings) if cache.url == EMBEDDED else None
            codec = _codec(cache)
            url = cache.url if server is None else server.url
            remote = RedisStore(parse_address(url), prefix=cache.prefix, lookup_s=cache.lookup_ms / 1000)
            self.replicas = Replicas(remote, codec, _described)
        self.stores = Stores(MemoryStore(cache.memory), remote, codec, max_entry_bytes=cache.max_entry)
        if server is not None:
            from gateway.embedded import EmbeddedValkey

            self._embedded = EmbeddedValkey(server, self.stores.open)
        self.flights = Flights()

    def open(self) -> None:
        """Begin to connect, to a server that is started first where it is ours; returns at once."""
        if self._embedded is not None:
            self._embedded.start()
        else:
            self.stores.open()

    async def aclose(self) -> None:
        """End the calls that are still made, write what is queued, and disconnect."""
        await self.flights.aclose()
        if self.replicas is not None:
            await self.replicas.aclose()
        await self.stores.aclose()
        if self._embedded is not None:
            await self._embedded.aclose()

    def ticket(self, exchange: Exchange) -> Ticket | None:
        """Return what may be done for a request; ``None`` when it has nothing to do with the cache."""
        wishes, incoming = exchange.wishes, exchange.incoming
        terms = wishes.terms
        if not (terms.read or terms.write):
            return None
        model, selector = self._fleet.resolve(incoming.model)
        mode = self._mode(wishes.caller, model)
        fields = incoming.body.fields
        if not is_cacheable(mode, incoming.operation, fields):
            return None
        kind = (model, selector, incoming.operation, incoming.needs, wishes.pinned, wishes.only)
        fingerprints = self._acceptance.fingerprints(kind)
        if not fingerprints:
            return None
        try:
            key = make_key(incoming.operation, model, self.scope(wishes.caller), fields)
        except Uncacheable:
            return None
        names = tuple(map(key.entry, fingerprints))
        return Ticket(key, model, fingerprints, names, terms, self._lifetimes.get(model, self._settings.ttl_s))

    def scope(self, caller: str) -> str:
        """Return the name of those who share a caller's answers."""
        if self._settings.shared:
            return ""
        group = self._group_of.get(caller)
        return f"group:{group}" if group is not None else f"key:{caller}"

    def _mode(self, caller: str, model: str) -> Mode:
        """The key's mode, else the model's, else the general one; what is off in one place is off."""
        given = [self._modes_of_keys.get(caller), self._modes.get(model), self._settings.mode]
        if Mode.OFF in given[:2]:
            return Mode.OFF
        return next(mode for mode in given if mode is not None)

    def counts(self, ticket: Ticket) -> Counts:
        """Return what is counted for a request's model."""
        return self.stores.statistics.of(ticket.model)

    def count_hit(self, ticket: Ticket, entry: Entry) -> None:
        """Count what an entry has saved."""
        counts = self.counts(ticket)
        counts.hits += 1
        counts.saved_prompt_tokens += entry.prompt_tokens or 0
        counts.saved_output_tokens += entry.output_tokens or 0
        counts.saved_s += entry.took_s

    def with_whole(self, ticket: Ticket, entry: Entry, operation: Operation) -> Entry:
        """Return an entry that has its one body, which is made once for as long as it is in memory."""
        if entry.whole or not entry.streamed:
            return entry
        whole = msgspec.structs.replace(entry, whole=joined(entry.body, operation))
        for name in ticket.names:
            if self.stores.memory.get(name) is entry:
                self.stores.memory.put(name, whole)
        return whole

    def keep(
        self,
        ticket: Ticket,
        exchange: Exchange,
        flight: Flight,
        outcome: Outcome,
        took_s: float,
        lease: tuple[str, str],
    ) -> bool:
        """Keep an answer that came whole, if it is one that may be given to others.

        Returns whether ``lease`` (its name and its holder, or "") is given back in the same step.
        """
        deployment, incoming = exchange.deployment, exchange.incoming
        pieces = flight.pieces
        if not (ticket.terms.write and outcome.whole and pieces and _is_good(exchange, outcome, pieces)):
            return False
        assert deployment is not None
        assert isinstance(flight.head, Head)
        streamed = flight.head.streamed
        created = time.time()
        entry = Entry(
            model=incoming.model,
            deployment=deployment.id,
            engine=deployment.engine,
            precision=deployment.precision,
            created=created,
            expires=expiry(ticket.ttl_s, created),
            streamed=streamed,
            body=b"".join(pieces),
            cuts=tuple(itertools.accumulate(map(len, pieces))) if streamed else (),
            pace_ms=_pace(flight.times) if streamed else (),
            prompt_tokens=outcome.prompt_tokens,
            output_tokens=outcome.output_tokens,
            finish_reason=outcome.finish_reason,
            took_s=took_s,
            model_name=ticket.model,
            whole=flight.whole,
        )
        return self.stores.keep(ticket.key, self.name_of(deployment), entry, *lease)

    def name_of(self, deployment: Deployment) -> str:
        """Return what a deployment's answers are kept under."""
        return self._acceptance.name(deployment)


def _embedded(settings: Settings) -> EmbeddedServer:
    try:
        return EmbeddedServer(find_server(), settings.data_dir / FOLDER, settings.cache.embedded_size)
    except NoServer as error:
        problem = Problem("cache.url", "is 'embedded'", f"{str(error)[0].upper()}{str(error)[1:]}.")
        raise SettingsError([problem]) from None


def _codec(cache: CacheSettings) -> Codec:
    try:
        return Codec(cache.encryption_keys())
    except (ValueError, ImportError) as error:
        fix = "Install paceline[encryption]." if isinstance(error, ImportError) else "Set it."
        raise SettingsError([Problem("cache.encryption", f"cannot be used: {error}", fix)]) from None


def _is_good(exchange: Exchange, outcome: Outcome, pieces: list[bytes]) -> bool:
    incoming = exchange.incoming
    if incoming.operation is Operation.EMBEDDINGS:
        return True
    reasons = {outcome.finish_reason or ""}
    if "n" in incoming.body:
        reasons.update(reason.decode() for reason in _REASON.findall(b"".join(pieces)))
    return is_worth_keeping(frozenset(reasons), has_limit=incoming.max_output is not None)


def _pace(times: list[float]) -> tuple[int, ...]:
    return tuple(int((at - times[0]) * 1000) for at in times)


def _described(error: BaseException) -> bytes:
    """What gateways that follow a call of ours are told of its end."""
    told = error if isinstance(error, ApiError) else ApiError(502, "the call was given up", code="engine_interrupted")
    return msgspec.msgpack.encode([told.status, told.message, told.type, told.code])


def described(data: bytes) -> ApiError:
    """Return the error that another gateway's call has ended with."""
    status, message, type_, code = msgspec.msgpack.decode(data, type=tuple[int, str, str, str | None])
    return ApiError(status, message, type_=type_, code=code)
