"""The simulation: events in order of time, requests sent where a policy says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf

from benchmarks.routing.engine import Engine, Hardware
from benchmarks.routing.policy import Policy
from benchmarks.routing.request import Request
from benchmarks.routing.scenario import DRIFT_STEP_S, Scenario, build
from policies.roster import precision_grade
from policies.selector import asks_for_precision, selects


class World:
    """One scenario under one policy, from the first request to the last answer."""

    def __init__(self, scenario: Scenario, make_policy: Callable[[World], Policy]) -> None:
        self.scenario = scenario
        self.engines, self.places = build(scenario.members)
        self.place_of: dict[int, Hardware] = {e.index: place for place in self.places for e in place.engines}
        self.now = 0.0
        self.answered: list[Request] = []
        self._where: dict[int, Engine] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._left = sum(_turns(request) for request in scenario.requests)
        self._policy = make_policy(self)

    def run(self) -> list[Request]:
        """Return all requests, answered."""
        for request in self.scenario.requests:
            self._at(request.at, lambda request=request: self._arrive(request))  # type: ignore[misc]
        for outage in self.scenario.outages:
            engine = self.engines[outage.engine]
            self._at(outage.at, lambda engine=engine: self._die(engine))  # type: ignore[misc]
            self._at(outage.back_at, lambda engine=engine: self._recover(engine))  # type: ignore[misc]
        self._drift(0)
        while self._left:
            self.now, _, event = heappop(self._events)
            event()
        return self.answered

    def able(self, request: Request) -> list[Engine]:
        """Return who may serve a request: up, and of the precision that was asked for.

        Callers who asked for no precision are served by 16 bits and by what passed its quality regression.
        """
        up = [engine for engine in self.engines if not engine.is_down and selects(request.selector, engine.deployment)]
        grades = [
            0 if asks_for_precision(request.selector, engine.deployment) else precision_grade(engine.deployment)
            for engine in up
        ]
        return [engine for engine, grade in zip(up, grades, strict=True) if grade == min(grades)]

    def _at(self, when: float, event: Callable[[], None]) -> None:
        heappush(self._events, (when, next(self._order), event))

    def _arrive(self, request: Request) -> None:
        request.began_at = self.now
        self._send(request)

    def _send(self, request: Request) -> None:
        able = self.able(request)
        if not able:
            self._at(self.now + 1.0, lambda: self._send(request))
            return
        engine = self._policy.choose(request, able, self.now)
        place = self.place_of[engine.index]
        request.sent_at = self.now
        self._where[request.number] = engine
        self._policy.sent(request, engine, self.now)
        place.take(engine, request, self.now)
        self._settle(place)

    def _settle(self, place: Hardware) -> None:
        place.admit(self.now)
        next_at = place.settle()
        if next_at < inf:
            version = place.version
            self._at(next_at, lambda: self._progress(place, version))

    def _progress(self, place: Hardware, version: int) -> None:
        if version != place.version:
            return
        place.advance(self.now)
        first, done = place.ended(self.now)
        for request in first:
            request.first_token_at = self.now
            self._policy.first_token(request, self._where[request.number], self.now)
        for request in done:
            self._done(request)
        self._settle(place)

    def _done(self, request: Request) -> None:
        request.done_at = self.now
        self._policy.done(request, self._where.pop(request.number), self.now)
        self.answered.append(request)
        self._left -= 1
        then = request.then
        if then is not None:
            self._at(self.now + request.pause_s, lambda: self._arrive(then))

    def _drift(self, step: int) -> None:
        for engine, speeds in zip(self.engines, self.scenario.speeds, strict=True):
            place = self.place_of[engine.index]
            place.advance(self.now)
            engine.speed = speeds[step % len(speeds)]
        for place in self.places:
            self._settle(place)
        self._at(self.now + DRIFT_STEP_S, lambda: self._drift(step + 1))

    def _die(self, engine: Engine) -> None:
        place = self.place_of[engine.index]
        place.advance(self.now)
        engine.is_down = True
        lost = place.drop_all(engine)
        self._settle(place)
        for request in lost:
            self._policy.lost(request, engine, self.now)
            self._send(request)

    def _recover(self, engine: Engine) -> None:
        engine.is_down = False
        engine.used_at = self.now


def _turns(request: Request) -> int:
    turns, then = 1, request.then
    while then is not None:
        turns, then = turns + 1, then.then
    return turns


def simulate(scenario: Scenario, make_policy: Callable[[World], Policy]) -> Sequence[Request]:
    """Run a scenario under a policy."""
    return World(scenario, make_policy).run()
