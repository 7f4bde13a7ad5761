"""What a routing policy is asked and told in the simulator, and the six that are compared with ours."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Sequence
from math import exp

from benchmarks.routing.engine import Engine
from benchmarks.routing.request import Request


class Policy:
    """Chooses an engine for each request; hears of each one's fate. ``able`` are never empty, and never down."""

    name = ""

    def choose(self, request: Request, able: Sequence[Engine], now: float) -> Engine:
        """Return the engine that gets the request."""
        raise NotImplementedError

    def sent(self, request: Request, engine: Engine, now: float) -> None:
        """The request is on its way."""

    def first_token(self, request: Request, engine: Engine, now: float) -> None:
        """The first token has come."""

    def done(self, request: Request, engine: Engine, now: float) -> None:
        """The answer is whole."""

    def lost(self, request: Request, engine: Engine, now: float) -> None:
        """The engine died with the request."""


class Random(Policy):
    """Any engine."""

    name = "random"

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)

    def choose(self, request: Request, able: Sequence[Engine], now: float) -> Engine:
        return self._dice.choice(able)


class RoundRobin(Policy):
    """One after the other."""

    name = "round robin"

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, request: Request, able: Sequence[Engine], now: float) -> Engine:
        self._turn += 1
        return able[self._turn % len(able)]


class Counting(Policy):
    """Keeps the number of requests in flight on each engine."""

    def __init__(self) -> None:
        self.inflight: dict[int, int] = defaultdict(int)

    def sent(self, request: Request, engine: Engine, now: float) -> None:
        self.inflight[engine.index] += 1

    def done(self, request: Request, engine: Engine, now: float) -> None:
        self.inflight[engine.index] -= 1

    def lost(self, request: Request, engine: Engine, now: float) -> None:
        self.inflight[engine.index] -= 1


class LeastBusy(Counting):
    """The fewest requests in flight; among equals, one after the other."""

    name = "least busy"

    def __init__(self) -> None:
        super().__init__()
        self._turn = 0

    def choose(self, request: Request, able: Sequence[Engine], now: float) -> Engine:
        self._turn += 1
        turned = [able[(i + self._turn) % len(able)] for i in range(len(able))]
        return min(turned, key=lambda engine: self.inflight[engine.index])


class TwoChoices(Counting):
    """Two engines by chance, and of these the one with fewer requests in flight."""

    name = "power of two choices"

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._dice = random.Random(seed)

    def choose(self, request: Request, able: Sequence[Engine], now: float) -> Engine:
        two = self._dice.sample(able, min(2, len(able)))
        return min(two, key=lambda engine: self.inflight[engine.index])


class LowestLatency(Policy):
    """The lowest mean of seconds per output token over the last ten answers, as LiteLLM's latency-based routing has it.

    An engine that has not answered yet is tried first.
    """

    name = "lowest latency"

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._last: dict[int, deque[float]] = defaultdict(lambda: deque(maxlen=10))

    def choose(self, request: Request, able: Sequence[Engine], now: float) -> Engine:
        shuffled = self._dice.sample(able, len(able))
        return min(shuffled, key=lambda engine: self._mean(engine.index))

    def _mean(self, index: int) -> float:
        last = self._last[index]
        return sum(last) / len(last) if last else 0.0

    def done(self, request: Request, engine: Engine, now: float) -> None:
        self._last[engine.index].append((now - request.sent_at) / request.output_tokens)


class PeakEwma(Counting):
    """The lowest product of latency and requests in flight, counting this one.

    The latency jumps to a new peak at once, and is averaged down with a time constant of ten seconds, as in Finagle.
    """

    name = "peak EWMA"
    _TAU_S = 10.0

    def __init__(self) -> None:
        super().__init__()
        self._latency: dict[int, tuple[float, float]] = {}

    def choose(self, request: Request, able: Sequence[Engine], now: float) -> Engine:
        return min(able, key=lambda engine: self._cost(engine.index))

    def _cost(self, index: int) -> float:
        latency_s, _ = self._latency.get(index, (0.0, 0.0))
        return latency_s * (self.inflight[index] + 1)

    def done(self, request: Request, engine: Engine, now: float) -> None:
        super().done(request, engine, now)
        taken_s = now - request.sent_at
        before_s, at = self._latency.get(engine.index, (0.0, now))
        if taken_s < before_s:
            weight = exp(-(now - at) / self._TAU_S)
            taken_s = before_s * weight + taken_s * (1.0 - weight)
        self._latency[engine.index] = taken_s, now
