"""The oracle: it knows the laws, what every engine has left to do, and how long each answer will be."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from itertools import count
from math import exp

from benchmarks.routing.engine import Engine
from benchmarks.routing.forward import aside, engine_in, run_down
from benchmarks.routing.policy import Policy
from benchmarks.routing.request import Request
from benchmarks.routing.world import World

_USUAL_S = 60.0


class Oracle(Policy):
    """Greedy, with perfect knowledge of the present.

    It runs each choice forward with the true laws, and takes the one with the least sum of the request's own total and
    of the delay of all others: those that are there already, and as many copies of the request as usually are on that
    hardware beyond them, sent to the same engine. What it does not know is what comes later: who arrives, how speeds
    will drift, which engine will die. So it is no bound on what is possible, only the best that can be done request by
    request.
    """

    name = "oracle"

    def __init__(self, world: World) -> None:
        self._place_of = world.place_of
        self._usual: dict[int, float] = defaultdict(float)
        self._inflight: dict[int, int] = defaultdict(int)
        self._at: dict[int, float] = defaultdict(float)

    def choose(self, request: Request, able: Sequence[Engine], now: float) -> Engine:
        return min(able, key=lambda engine: self._cost(request, engine, now))

    def _cost(self, request: Request, engine: Engine, now: float) -> float:
        place = self._place_of[engine.index]
        place.advance(now)
        self._count(engine, now, 0)
        more = self._usual[id(place)] - self._inflight[id(place)]
        usual = max(0, round(more))
        with_it, without = aside(place), aside(place)
        numbers = count(-1, -1)
        with_it.take(engine_in(with_it, engine), copy.copy(request), now)
        for twin in (with_it, without):
            for _ in range(usual):
                phantom = copy.copy(request)
                phantom.number = next(numbers)
                twin.take(engine_in(twin, engine), phantom, now)
        return sum(run_down(with_it, now).values()) - sum(run_down(without, now).values())

    def _count(self, engine: Engine, now: float, change: int) -> None:
        place = id(self._place_of[engine.index])
        kept = exp(-(now - self._at[place]) / _USUAL_S)
        self._usual[place] = kept * self._usual[place] + (1.0 - kept) * self._inflight[place]
        self._inflight[place] += change
        self._at[place] = now

    def sent(self, request: Request, engine: Engine, now: float) -> None:
        self._count(engine, now, 1)

    def done(self, request: Request, engine: Engine, now: float) -> None:
        self._count(engine, now, -1)

    def lost(self, request: Request, engine: Engine, now: float) -> None:
        self._count(engine, now, -1)
