"""Embeddings, kept text by text: of a batch with ninety known and ten new texts an engine is asked for the ten."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from adapters.body import Body
from cache.entry import Entry
from cache.flight import Flight
from cache.head import Head
from cache.items import Item, read_answer, shares, split, write_answer
from cache.key import ItemKeys, Key
from cache.stores import expiry
from gateway.attempt import Attempt
from gateway.caching import Caching, Ticket
from gateway.errors import ApiError
from gateway.exchange import Exchange
from gateway.fleet import Fleet
from gateway.incoming import Incoming
from gateway.pipeline import collect_body, fetch

Known = dict[str, Entry]
"""Entries by the digest of their text's key."""


class Batch:
    """One request for embeddings, taken apart. ``known`` is what the cache has of it, all by one deployment."""

    def __init__(self, exchange: Exchange, ticket: Ticket, caching: Caching, items: list[Item]) -> None:
        self._exchange = exchange
        self._ticket = ticket
        self._caching = caching
        scope = caching.scope(exchange.wishes.caller)
        keys = ItemKeys(exchange.incoming.operation, ticket.model, scope, exchange.incoming.body.fields)
        self._items = items
        self._keys = [keys.of(item) for item in items]
        self.known: Known = {}

    def knows_all(self) -> bool:
        """Whether all of it is known."""
        return all(key.digest in self.known for key in self._keys)

    def recall(self) -> None:
        """Look in memory."""
        memory = self._caching.stores.memory
        self._choose([{k.digest: e for k in self._keys if (e := memory.get(k.entry(f)))} for f in self._fingerprints()])

    async def find(self) -> None:
        """Look in the shared store as well."""
        distinct = list({key.digest: key for key in self._keys}.values())
        found = []
        for fingerprint in self._fingerprints():
            entries = await self._caching.stores.find_many([key.entry(fingerprint) for key in distinct])
            found.append({k.digest: e for k, e in zip(distinct, entries, strict=True) if e is not None})
            if len(found[-1]) == len(distinct):
                break
        self._choose(found)

    def _fingerprints(self) -> tuple[str, ...]:
        return self._ticket.fingerprints if self._ticket.terms.read else ()

    def _choose(self, found: Sequence[Known]) -> None:
        """Take the deployment that knows most of it: vectors of two precisions do not belong into one answer."""
        max_age_s = self._ticket.terms.max_age_s
        if max_age_s is not None:
            oldest = time.time() - max_age_s
            found = [{d: e for d, e in known.items() if e.created >= oldest} for known in found]
        self.known = max(found, key=len, default={})

    def entry(self) -> Entry:
        """Return the answer as if it had been kept as one; all of it has to be known."""
        entries = [self.known[key.digest] for key in self._keys]
        tokens = sum(entry.prompt_tokens or 0 for entry in entries)
        body = write_answer(entries[0].model, [entry.body for entry in entries], tokens)
        oldest = min(entries, key=lambda entry: entry.created)
        took_s = sum(entry.took_s for entry in entries)
        return msgspec.structs.replace(
            oldest, model=entries[0].model, body=body, prompt_tokens=tokens, took_s=took_s, streamed=False
        )

    async def drive(self, flight: Flight, fleet: Fleet) -> None:
        """Have an engine embed what is not known, and put the answer together. Raises ``ApiError``."""
        await self.find()
        if self.knows_all():
            flight.take_off(self.entry())
            return
        self._caching.counts(self._ticket).misses += 1
        if self.known:
            try:
                await self._ask(flight, fleet, next(iter(self.known.values())).deployment)
                return
            except ApiError:
                self.known = {}  # whoever made those cannot make the others now: somebody else makes all of them
        await self._ask(flight, fleet, self._exchange.wishes.pinned)

    async def _ask(self, flight: Flight, fleet: Fleet, deployment: str) -> None:
        exchange = self._exchange
        absent = {key.digest: (key, item) for key, item in zip(self._keys, self._items, strict=True)}
        asked = [each for digest, each in absent.items() if digest not in self.known]
        items = [item for _, item in asked]
        exchange.incoming = _only(exchange, items)
        exchange.wishes = replace(exchange.wishes, pinned=deployment)
        body, took_s = b"", 0.0

        async def deliver(attempt: Attempt) -> None:
            nonlocal body, took_s
            body = await collect_body(attempt)
            took_s = asyncio.get_running_loop().time() - attempt.started_at

        await fetch(exchange, fleet, deliver)
        answer = read_answer(body, len(items))
        served = exchange.deployment
        assert served is not None
        if answer is not None:
            self._keep(asked, answer, took_s)
            body = self.entry().body
        elif self.known:
            raise ApiError(502, "The engine's embeddings are not those of OpenAI's protocol.", code="engine_failed")
        flight.take_off(Head(exchange.incoming.model, served.id, served.engine, served.precision, streamed=False))
        await flight.add(body)

    def _keep(self, asked: Sequence[tuple[Key, Item]], answer: tuple[list[bytes], int], took_s: float) -> None:
        vectors, tokens = answer
        served, created = self._exchange.deployment, time.time()
        assert served is not None
        each_took_s = took_s / len(asked)
        for (key, _), vector, share in zip(asked, vectors, shares(tokens, [item for _, item in asked]), strict=True):
            entry = Entry(
                model=self._exchange.incoming.model,
                deployment=served.id,
                engine=served.engine,
                precision=served.precision,
                created=created,
                expires=expiry(self._ticket.ttl_s, created),
                streamed=False,
                body=vector,
                prompt_tokens=share,
                took_s=each_took_s,
                model_name=self._ticket.model,
            )
            self.known[key.digest] = entry
            if self._ticket.terms.write:
                self._caching.stores.keep(key, self._caching.name_of(served), entry)


def batch_of(exchange: Exchange, ticket: Ticket, caching: Caching) -> Batch | None:
    """Take a request for embeddings apart; ``None`` when its input is of a shape that an engine will refuse."""
    items = split(exchange.incoming.body.fields["input"])
    return None if items is None else Batch(exchange, ticket, caching, items)


def _only(exchange: Exchange, items: list[Item]) -> Incoming:
    """The request as if it were for these inputs only."""
    incoming = exchange.incoming
    raw = msgspec.Raw(msgspec.json.encode(items))
    return replace(incoming, body=Body({**incoming.body.fields, "input": raw}), text_bytes=len(raw))
