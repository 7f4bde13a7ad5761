"""What Paceline would measure of simulated engines before they serve: the quick grid, a few batches, and pairs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import median

from benchmarks.routing.engine import Engine, Hardware
from benchmarks.routing.forward import run_beside, run_together
from benchmarks.routing.request import Request
from benchmarks.routing.scenario import Member, build
from policies.types import BatchSample, PairSample, SpeedSample

GRID = (32, 128, 512)
OUTPUT = 16
"""Prompt lengths and answers of the quick measurement."""
BATCHES = (1, 2, 4)
_BATCH = (64, 128)
"""How many requests at once, and their prompt and output tokens, in the cells of the benchmark that matter here."""
_TIMED = (64, 12)
_NEIGHBOUR = {"decoding": (32, 256), "prefilling": (512, 1)}
"""Prompt and output tokens of the pair measurement: of the one that is timed, and of its busy neighbour."""
_SIGMA = 0.04
"""A median of three runs is off by so much."""

Shape = tuple[int, int]


class Measurement:
    """Everything that is on record of one engine when the simulation begins."""

    def __init__(self, members: Sequence[Member], index: int, dice: random.Random) -> None:
        self._members = members
        self._index = index
        self._dice = dice
        slots = members[index].deployment.slots or BATCHES[-1]
        self.samples = [self._speed(tokens) for tokens in GRID]
        self.batches = [self._batch(n) for n in BATCHES if n <= slots]
        self.pairs = self._pairs(slots)

    def _speed(self, tokens: int) -> SpeedSample:
        place, engine = self._idle(self._index)
        seen = run_beside(place, self._request((tokens, OUTPUT)), engine)
        return SpeedSample(tokens, OUTPUT, self._noisy(seen.ttft_s), self._noisy(_tpot_s(seen)))

    def _batch(self, concurrency: int) -> BatchSample:
        place, engine = self._idle(self._index)
        seen = run_together(place, [self._request(_BATCH) for _ in range(concurrency)], engine)
        ttft_s, tpot_s = median(each.ttft_s for each in seen), median(_tpot_s(each) for each in seen)
        return BatchSample(concurrency, *_BATCH, self._noisy(ttft_s), self._noisy(tpot_s))

    def _pairs(self, slots: int) -> list[PairSample]:
        devices = self._members[self._index].deployment.hardware.devices
        others = [
            i for i, m in enumerate(self._members) if i != self._index and m.deployment.hardware.devices == devices
        ]
        beside = [("same", self._index)] if slots > 1 else []
        beside += [("other", other) for other in others[:1]]
        return [self._pair(kind, other, activity) for kind, other in beside for activity in _NEIGHBOUR]

    def _pair(self, kind: str, other: int, activity: str) -> PairSample:
        place, engine = self._idle(self._index)
        alone = run_beside(place, self._request(_TIMED), engine)
        place, engine = self._idle(self._index)
        where = next(each for each in place.engines if each.index == other)
        beside = run_beside(place, self._request(_TIMED), engine, self._request(_NEIGHBOUR[activity]), where)
        return PairSample(
            kind,
            activity,
            self._noisy(beside.ttft_s / alone.ttft_s),
            self._noisy(_tpot_s(beside) / _tpot_s(alone)),
        )

    def _idle(self, index: int) -> tuple[Hardware, Engine]:
        engines, places = build(self._members)
        place = next(place for place in places if any(engine.index == index for engine in place.engines))
        return place, engines[index]

    def _request(self, shape: Shape) -> Request:
        prompt, output = shape
        return Request(0, 0.0, prompt, output, prompt, "", (1.0,) * len(self._members))

    def _noisy(self, value: float) -> float:
        return value * self._dice.lognormvariate(0.0, _SIGMA)


def _tpot_s(request: Request) -> float:
    return (request.done_at - request.first_token_at) / (request.output_tokens - 1)
