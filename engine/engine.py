"""The engine's loop: one thread that plans a step, has it computed, and tells what it brought."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from typing import Protocol

from engine.detokenizer import StopStrings
from engine.errors import ContextExceeded, EngineStopped, InvalidRequest, OutOfMemory, Overloaded
from engine.events import Delta, Done, Event, Failed, Listener, Timings, Usage
from engine.request import Finish, Plan, Result, Sequence
from engine.scheduler import Outcome, Scheduler
from engine.speculative import Speculator

IDLE_S = 5.0
logger = logging.getLogger("paceline.engine")


class Pending(Protocol):
    """A step under way."""

    def result(self) -> list[Result]:
        """One result a row; waits for the device. Raises OutOfMemory."""


class Runner(Protocol):
    """Computes steps. While one is under way the last one's text is made, so ``start`` had better not wait for it."""

    def start(self, plan: Plan) -> Pending:
        """Begins a step. Raises OutOfMemory; it can then be planned again, smaller."""

    def close(self) -> None:
        """Nothing is started after this."""


class Decoder(Protocol):
    """Tokens to text, for one answer."""

    def feed(self, tokens: Listed[int]) -> str:
        """The text that these tokens complete."""

    def finish(self) -> str:
        """What was kept back."""


@dataclass(frozen=True, slots=True)
class Load:
    """The engine's gauges and, since its start, its counters."""

    running: int
    waiting: int
    blocks: int
    free_blocks: int
    token_budget: int
    steps: int
    prompt_tokens: int
    generated_tokens: int
    prefix_asked: int
    """Tokens looked up in the prefix cache, and how many of them were found."""
    prefix_found: int
    drafted: int
    """Tokens guessed ahead, and how many of them were accepted."""
    accepted: int
    preemptions: int


class _Request:
    """What the engine's thread knows of a request beside its sequence."""

    def __init__(self, sequence: Sequence, listener: Listener, decoder: Decoder) -> None:
        self.sequence = sequence
        self.listener = listener
        self.decoder = decoder
        self.stops = StopStrings(sequence.sampling.stop)
        self.completion = 0
        self.last_s = 0.0
        self.steps = 0
        self.beside = 0
        self.drafted = 0
        self.accepted = 0

    def read(self, outcome: Outcome) -> tuple[Delta | None, Finish | None]:
        """The piece of the answer that an outcome makes, cut at a stop string, and its end."""
        finish, text, count = outcome.finish, "", 0
        for count, token in enumerate(outcome.tokens, 1):
            ends = finish is Finish.STOP and count == len(outcome.tokens)  # the token that ends an answer is not shown
            text += "" if ends else self.stops.feed(self.decoder.feed((token,)))
            if self.stops.stopped:
                finish = Finish.STOP
                break
        if finish is not None and not self.stops.stopped:
            text += self.stops.feed(self.decoder.finish())
            text += self.stops.finish()
        self.completion += count
        return (Delta(text, outcome.tokens[:count], outcome.logprobs[:count]) if count else None), finish

    def done(self, finish: Finish, embedding: tuple[float, ...] | None = None) -> Done:
        """Its end, with what it used and how long that took."""
        sequence = self.sequence
        started = sequence.started_s if sequence.started_s is not None else time.monotonic()
        first = sequence.first_token_s if sequence.first_token_s is not None else max(self.last_s, started)
        timings = Timings(
            queue_ms=1000 * (started - sequence.arrived_s),
            prefill_ms=1000 * (first - started),
            decode_ms=1000 * (max(self.last_s, first) - first),
            batch=self.beside / self.steps if self.steps else 0.0,
            drafted=self.drafted,
            accepted=self.accepted,
            preemptions=sequence.preemptions,
        )
        usage = Usage(sequence.prompt_length, sequence.cached, self.completion)
        return Done(finish, usage, timings, embedding)


class Engine:
    """Serves sequences until it is stopped. All methods may be called from any thread.

    ``decoder`` makes a sequence's decoder. ``queue`` more requests than run at once are taken. When a step takes longer
    than ``step_limit_s``, or the loop breaks, all requests fail, ``healthy`` is False for good, and ``on_broken`` is
    called, on another thread.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        decoder: Callable[[Sequence], Decoder],
        speculator: Speculator | None = None,
        *,
        queue: int = 256,
        step_limit_s: float = 120.0,
        on_broken: Callable[[], None] = lambda: None,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._decoder = decoder
        self._speculator = speculator
        self._most = scheduler.limits.max_sequences + queue
        self._step_limit_s = step_limit_s
        self._on_broken = on_broken
        self._wake = threading.Condition()
        self._requests: dict[int, _Request] = {}
        self._arrived: list[Sequence] = []
        self._leaving: set[int] = set()
        self._deadline_s: float | None = None
        self._untold: list[Outcome] = []
        self._over: list[Sequence] = []
        self._steps = 0
        self._prompt_tokens = 0
        self._generated_tokens = 0
        self._step_began_s: float | None = None
        self._broken = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._watchdog = threading.Thread(target=self._watch, name="engine-watchdog", daemon=True)

    @property
    def healthy(self) -> bool:
        """False once a step hung or the loop broke."""
        return not self._broken

    @property
    def ended(self) -> bool:
        """Whether the loop is over: while it is not, its thread may be within native code."""
        return not self._thread.is_alive()

    def start(self) -> None:
        """Starts the engine's threads, once."""
        self._thread.start()
        self._watchdog.start()

    def submit(self, sequence: Sequence, listener: Listener) -> None:
        """Queues a sequence, whose id is new; its listener gets any number of Delta, then one Done or Failed.

        Raises InvalidRequest (an empty prompt), ContextExceeded, Overloaded or EngineStopped.
        """
        if not sequence.prompt_length:
            raise InvalidRequest("the prompt is empty")
        if sequence.prompt_length + (not sequence.pools) > self._scheduler.context:
            raise ContextExceeded(sequence.prompt_length, self._scheduler.context)
        request = _Request(sequence, listener, self._decoder(sequence))
        with self._wake:
            if self._deadline_s is not None or self._ended.is_set() or self._broken:
                raise EngineStopped("the engine has ended")
            if len(self._requests) >= self._most:
                raise Overloaded(f"{len(self._requests)} requests are being served or wait already")
            sequence.arrived_s = time.monotonic()
            self._requests[sequence.id] = request
            self._arrived.append(sequence)
            self._wake.notify()

    def cancel(self, sequence_id: int) -> None:
        """Ends a request before the next step, with ``Finish.CANCELLED``. One that has ended is passed over."""
        with self._wake:
            if sequence_id in self._requests:
                self._leaving.add(sequence_id)
                self._wake.notify()

    def stop(self, grace_s: float = 0.0) -> None:
        """Takes no more requests, serves those it has for ``grace_s`` seconds, fails the rest with EngineStopped."""
        with self._wake:
            self._deadline_s = time.monotonic() + grace_s
            self._wake.notify()
        self._thread.join(grace_s + self._step_limit_s)

    def fail(self) -> None:
        """Fails all requests and takes no more: something that it needs is lost."""
        self._broken = True
        self._fail_all("the engine broke")
        self._on_broken()

    def load(self) -> Load:
        """What the engine is doing now."""
        scheduler, speculator = self._scheduler, self._speculator
        running = len(scheduler.running)
        return Load(
            running=running,
            waiting=max(len(self._requests) - running, 0),
            blocks=scheduler.blocks.blocks,
            free_blocks=scheduler.blocks.free,
            token_budget=scheduler.budget,
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
            prefix_asked=scheduler.blocks.asked,
            prefix_found=scheduler.blocks.found,
            drafted=speculator.proposed if speculator else 0,
            accepted=speculator.accepted if speculator else 0,
            preemptions=scheduler.preemptions,
        )

    def _run(self) -> None:
        try:
            while self._commands():
                self._step()
            self._tell()
        except Exception:  # the thread's edge: nobody else would hear of it
            logger.exception("the engine's loop broke")
            self.fail()
        finally:
            self._ended.set()
            self._fail_all("the engine has ended")
            self._runner.close()

    def _commands(self) -> bool:
        """Takes in what arrived and what leaves; waits while there is nothing to do. False when the loop ends."""
        self._remove()
        with self._wake:
            while not (self._requests or self._ends()):
                self._wake.wait(IDLE_S)
            if self._ends():
                return False
            arrived, self._arrived = self._arrived, []
            leaving, self._leaving = self._leaving, set()
        for sequence in arrived:
            self._scheduler.add(sequence)
        for sequence_id in leaving:
            request = self._requests.get(sequence_id)
            if request is not None:
                self._end(request, request.done(Finish.CANCELLED))
        self._remove()
        return True

    def _remove(self) -> None:
        for sequence in self._over:
            self._scheduler.remove(sequence)
        self._over = []

    def _ends(self) -> bool:
        if self._deadline_s is None:
            return self._broken
        return self._broken or not self._requests or time.monotonic() >= self._deadline_s

    def _step(self) -> None:
        began = self._step_began_s = time.monotonic()
        if self._speculator:
            self._speculator.propose(self._scheduler.decoding())
        guessing_s = time.monotonic() - began
        plan = self._scheduler.plan()
        if plan.rows:
            try:
                pending = self._runner.start(plan)
                self._tell()
                outcomes = self._scheduler.commit(plan, pending.result())
            except OutOfMemory as error:
                self._retreat(plan, error)
            else:
                self._note(plan, outcomes, began, guessing_s)
        if not self._scheduler.running:
            self._tell()
        self._step_began_s = None

    def _retreat(self, plan: Plan, error: OutOfMemory) -> None:
        logger.warning("%s: later steps are smaller", error)
        alone = self._scheduler.shrink(plan)
        self._tell()  # a request that fails now may have tokens of the step before
        if alone is not None and alone.id in self._requests:
            self._end(self._requests[alone.id], Failed(error))

    def _note(self, plan: Plan, outcomes: list[Outcome], began_s: float, guessing_s: float) -> None:
        now_s = time.monotonic()
        self._steps += 1
        for row in plan.rows:
            request = self._requests.get(row.sequence.id)
            if row.sequence.started_s is None:
                row.sequence.started_s = began_s
            if request is not None:
                request.steps += 1
                request.beside += len(plan.rows)
        for outcome in outcomes:
            request = self._requests.get(outcome.sequence.id)
            if request is None or not (outcome.tokens or outcome.finish):
                continue
            if outcome.sequence.first_token_s is None:
                outcome.sequence.first_token_s = now_s
                self._prompt_tokens += outcome.sequence.prompt_length
            request.last_s = now_s
            request.drafted += outcome.drafted
            request.accepted += max(len(outcome.tokens) - 1, 0)
            self._generated_tokens += len(outcome.tokens)
            self._untold.append(outcome)
        if self._speculator:
            self._speculator.learn(plan, outcomes, now_s - began_s, guessing_s)

    def _tell(self) -> None:
        """Turns what the last step brought into text and events, while the next is under way."""
        untold, self._untold = self._untold, []
        for outcome in untold:
            request = self._requests.get(outcome.sequence.id)
            if request is None:
                continue
            if outcome.result.error is not None:
                self._end(request, Failed(outcome.result.error))
                continue
            delta, finish = request.read(outcome)
            if delta is not None:
                self._send(request, delta)
            if finish is not None:
                self._end(request, request.done(finish, outcome.result.embedding))

    def _end(self, request: _Request, event: Done | Failed) -> None:
        with self._wake:
            if self._requests.pop(request.sequence.id, None) is None:
                return
        self._over.append(request.sequence)  # a step that has it may be under way, so its blocks are freed later
        if self._speculator:
            self._speculator.forget(request.sequence)
        self._send(request, event)

    def _send(self, request: _Request, event: Event) -> None:
        try:
            request.listener(event)
        except RuntimeError:
            self.cancel(request.sequence.id)

    def _fail_all(self, why: str) -> None:
        with self._wake:
            failed, self._requests = self._requests, {}
        for request in failed.values():
            self._send(request, Failed(EngineStopped(why)))

    def _watch(self) -> None:
        while not self._ended.wait(min(1.0, self._step_limit_s / 4)):
            began_s = self._step_began_s
            if began_s is not None and time.monotonic() - began_s > self._step_limit_s:
                logger.error("a step takes longer than %s s: it hangs", self._step_limit_s)
                self.fail()
                return
