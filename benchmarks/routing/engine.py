"""Simulated engines: slots, a queue, one prompt read at a time, a shared batch, a prefix cache, hardware in common."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterator
from heapq import heappop, heappush

from benchmarks.routing.laws import Sharing, SpeedLaw
from benchmarks.routing.request import Request
from policies.types import Deployment

BLOCK_TOKENS = 128
"""Tokens of one block of a prompt's prefix."""
_NEAR = 1e-9


class Engine:
    """One deployment. Between two events of its hardware all rates are constant, so that progress is a multiplication.

    ``written_s`` is a clock that runs at the speed of one answer alone: all answers in a batch share it.
    """

    __slots__ = (
        "_blocks",
        "_most_blocks",
        "deployment",
        "index",
        "is_down",
        "keep_loaded_s",
        "law",
        "load_s",
        "loading_until",
        "queue",
        "read_rate",
        "reading",
        "remembers",
        "slots",
        "speed",
        "used_at",
        "write_rate",
        "writing",
        "written_s",
    )

    def __init__(
        self, deployment: Deployment, law: SpeedLaw, index: int, *, load_s: float, keep_loaded_s: float
    ) -> None:
        self.deployment = deployment
        self.law = law
        self.index = index
        self.slots = deployment.slots or 1 << 30
        self.load_s = load_s
        self.keep_loaded_s = keep_loaded_s
        self.speed = 1.0
        self.is_down = False
        self.remembers = True
        """A copy that is run ahead of time leaves the cache as it is."""
        self.used_at = 0.0
        self.loading_until = 0.0
        self.queue: deque[Request] = deque()
        self.reading: deque[Request] = deque()
        self.writing: list[tuple[float, int, Request]] = []
        self.written_s = 0.0
        self.read_rate = self.write_rate = 0.0
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._most_blocks = (deployment.context or 8192) * min(self.slots, 8) // BLOCK_TOKENS

    @property
    def busy(self) -> int:
        """Requests that read or write."""
        return len(self.reading) + len(self.writing)

    def requests(self) -> Iterator[Request]:
        """Yield all requests that are here."""
        yield from self.queue
        yield from self.reading
        for _, _, request in self.writing:
            yield request

    def is_cold(self, now: float) -> bool:
        """Whether the model has been unloaded: nobody has used it for a while."""
        return not self.busy and not self.queue and now - self.used_at > self.keep_loaded_s

    def cached_tokens(self, request: Request) -> int:
        """Return how much of a prompt's beginning need not be read."""
        held = 0
        for block in request.prefix:
            if block not in self._blocks:
                break
            held += 1
        return min(held * BLOCK_TOKENS, request.prompt_tokens - 1)

    def remember(self, request: Request) -> None:
        """Keep a prompt's blocks, and drop those that were used longest ago."""
        if not self.remembers:
            return
        for block in reversed(request.prefix):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._most_blocks:
            self._blocks.popitem(last=False)

    def forget(self) -> None:
        """The engine has been restarted, or its model unloaded."""
        self._blocks = OrderedDict()

    def start(self, request: Request, now: float) -> None:
        """A slot is free: begin to read."""
        request.cached_tokens = self.cached_tokens(request)
        luck = request.luck[self.index]
        uncached = request.prompt_tokens - request.cached_tokens
        request.read_s = request.left_s = luck * self.law.read_s(uncached, request.cached_tokens)
        request.write_s = luck * self.law.write_s(request.prompt_tokens, request.output_tokens)
        request.reading_since = now
        self.reading.append(request)

    def advance(self, seconds: float) -> None:
        """Let time pass at the present rates."""
        if self.reading:
            self.reading[0].left_s -= seconds * self.read_rate
        self.written_s += seconds * self.write_rate

    def next_s(self) -> float:
        """Return the seconds until something ends here, at the present rates."""
        reads = self.reading[0].left_s / self.read_rate if self.reading else math.inf
        writes = (self.writing[0][0] - self.written_s) / self.write_rate if self.writing else math.inf
        return min(reads, writes)

    def tokens_written(self, request: Request) -> int:
        """Return how long an answer is by now."""
        left = max(0.0, request.ends_at - self.written_s)
        return max(1, int(request.output_tokens * (1.0 - left / request.write_s))) if request.write_s else 1


class Hardware:
    """The engines that share a device; an engine alone on its own is the usual case."""

    def __init__(self, engines: list[Engine], sharing: Sharing) -> None:
        self.engines = engines
        self.sharing = sharing
        self.at = 0.0
        self.version = 0
        """Counts the changes, so that an event that was planned before one is known to be void."""

    def advance(self, now: float) -> None:
        """Bring all engines up to a moment."""
        passed = now - self.at
        if passed > 0.0:
            for engine in self.engines:
                engine.advance(passed)
            self.at = now

    def take(self, engine: Engine, request: Request, now: float) -> None:
        """A request arrives; it waits when no slot is free, or while the model loads."""
        self.advance(now)
        if engine.is_cold(now):
            engine.loading_until = now + engine.load_s
            engine.forget()
        request.was_cold = now < engine.loading_until
        engine.used_at = now
        engine.queue.append(request)

    def admit(self, now: float) -> None:
        """Give free slots to those who wait."""
        for engine in self.engines:
            while engine.queue and engine.busy < engine.slots and now >= engine.loading_until - _NEAR:
                engine.start(engine.queue.popleft(), now)

    def settle(self) -> float:
        """Set the rates for what runs now, and return the time of the next event."""
        self.version += 1
        waits = math.inf
        sharing = self.sharing
        for engine in self.engines:
            if not engine.reading and not engine.writing:
                engine.read_rate = engine.write_rate = 0.0
                if engine.queue:
                    waits = min(waits, engine.loading_until - self.at)
                continue
            reads = writes = 1.0
            for other in self.engines:
                if other is engine:
                    continue
                if other.reading:
                    reads += sharing.read_beside_reading - 1.0
                    writes += sharing.write_beside_reading - 1.0
                elif other.writing:
                    reads += sharing.read_beside_writing - 1.0
                    writes += sharing.write_beside_writing - 1.0
            law = engine.law
            engine.read_rate = engine.speed / reads
            batch = 1.0 + law.batch * max(0, len(engine.writing) - 1)
            engine.write_rate = engine.speed / (writes * batch * (law.stall if engine.reading else 1.0))
            waits = min(waits, engine.next_s())
        return self.at + max(0.0, waits)

    def ended(self, now: float) -> tuple[list[Request], list[Request]]:
        """Return who has read its prompt by now, and who has its whole answer; both leave what they did."""
        first, done = [], []
        for engine in self.engines:
            while engine.writing and engine.writing[0][0] <= engine.written_s + _NEAR:
                done.append(heappop(engine.writing)[2])
                engine.used_at = now
            if engine.reading and engine.reading[0].left_s <= _NEAR:
                request = engine.reading.popleft()
                engine.remember(request)
                first.append(request)
                if request.write_s > 0.0:
                    request.ends_at = engine.written_s + request.write_s
                    heappush(engine.writing, (request.ends_at, request.number, request))
                else:
                    done.append(request)
                    engine.used_at = now
        return first, done

    def drop_all(self, engine: Engine) -> list[Request]:
        """The engine has died: return whom it had."""
        lost = list(engine.requests())
        engine.queue.clear()
        engine.reading.clear()
        engine.writing.clear()
        engine.forget()
        return lost
