"""What each deployment has to do at the moment of a decision: our own requests, the engine's gauges, its state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.breakers import Breakers
from gateway.engine import Engine
from gateway.learned import Learned
from gateway.lingering import Lingering
from policies.ledger import Ledger
from policies.types import Deployment, Health, LoadView, RequestFacts

_LOADING = Health.LOADING


class Loads:
    """Puts it together from those who know a part of it; itself it knows which engines asked to be left alone."""

    def __init__(self, ledger: Ledger, breakers: Breakers, lingering: Lingering, learned: Learned) -> None:
        self._ledger = ledger
        self._breakers = breakers
        self._lingering = lingering
        self._learned = learned
        self._busy_until: dict[str, float] = {}
        self._engines: tuple[Engine, ...] = ()
        self._places: dict[str, tuple[Engine, Deployment]] = {}

    def place(self, engines: Iterable[Engine], places: Mapping[str, tuple[Engine, Deployment]]) -> None:
        """Tell which engines there are, and by id which deployment runs on which of them."""
        self._engines, self._places = tuple(engines), dict(places)
        self._busy_until = {id_: until for id_, until in self._busy_until.items() if id_ in places}

    def leave_alone(self, id_: str, until: float) -> None:
        """A deployment has said that it is busy: until then it is asked only when nobody else can."""
        self._busy_until[id_] = until

    def views(self, facts: RequestFacts, now: float) -> dict[str, LoadView]:
        """Return the loads of those that are not plainly idle; a decision takes all others to be."""
        held: dict[str, int] = {}
        if facts.prefix or facts.messages:
            held = self._learned.holders(facts, facts.prompt_tokens)
        if self._busy_until:
            self._busy_until = {id_: until for id_, until in self._busy_until.items() if until > now}
        ids = {*self._ledger.busy, *self._breakers.tripped, *self._busy_until, *self._lingering.ids, *held}
        for engine in self._engines:
            if not engine.is_plain:
                ids.update(deployment.id for deployment in engine.deployments)
        most = max(0, facts.prompt_tokens - 1)
        return {id_: self._view(id_, min(held.get(id_, 0), most), now) for id_ in ids if id_ in self._places}

    def _view(self, id_: str, held_tokens: int, now: float) -> LoadView:
        engine, deployment = self._places[id_]
        block = deployment.cache_block
        health = engine.health
        busy_until = self._busy_until.get(id_)
        return LoadView(  # by position, which is quicker
            health,
            *self._ledger.view(id_),
            engine.foreign_running,
            engine.foreign_waiting,
            now - engine.gauges_at,
            engine.is_resident(deployment),
            engine.remaining_load_s(now) if health is _LOADING else engine.usual_load_s,
            not self._breakers.allow(id_, now),
            0.0 if busy_until is None else max(0.0, busy_until - now),
            held_tokens - held_tokens % block if block else 0,
            engine.note,
            self._lingering.left_s(id_, now),
        )
