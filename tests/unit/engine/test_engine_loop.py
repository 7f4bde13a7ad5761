"""The engine's loop over the toy model: what callers are told, and what one request's trouble means to others."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from toy_runner import EOS, VOCABULARY, Pending, ToyRunner, alone, sequence

from engine.block_manager import BlockManager
from engine.engine import Engine
from engine.errors import ContextExceeded, EngineStopped, InvalidRequest, OutOfMemory, Overloaded, Poisoned
from engine.events import Delta, Done, Event, Failed
from engine.request import Finish, Plan, Result, Sampling, Sequence
from engine.scheduler import Limits, Scheduler
from engine.speculative import Speculator

LIMIT_S = 20.0
CONTEXT = 256


class Words:
    """Spells a token as two digits and a blank, and shows each only when the next has come."""

    def __init__(self) -> None:
        self.kept = ""

    def feed(self, tokens: tuple[int, ...]) -> str:
        text = self.kept + "".join(f"{token:02d} " for token in tokens)
        text, self.kept = text[:-3], text[-3:]
        return text

    def finish(self) -> str:
        return self.kept


def spelled(tokens: list[int]) -> str:
    return "".join(f"{token:02d} " for token in tokens)


class Answer:
    """Listens to one request. It may be told nothing after its end."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.begun = threading.Event()
        self.ended = threading.Event()

    def __call__(self, event: Event) -> None:
        assert not self.ended.is_set()
        self.events.append(event)
        self.begun.set()
        if not isinstance(event, Delta):
            self.ended.set()

    @property
    def end(self) -> Done | Failed:
        assert self.ended.wait(LIMIT_S), "no end"
        last = self.events[-1]
        assert not isinstance(last, Delta)
        return last

    @property
    def done(self) -> Done:
        assert isinstance(self.end, Done), self.end
        return self.end

    @property
    def error(self) -> Exception:
        assert isinstance(self.end, Failed), self.end
        return self.end.error

    @property
    def deltas(self) -> list[Delta]:
        return [event for event in self.events if isinstance(event, Delta)]

    @property
    def tokens(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.tokens]

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)


class Gate:
    """Lets steps through one at a time, or all."""

    def __init__(self, runner: ToyRunner) -> None:
        self.open = threading.Event()
        self.waits = threading.Event()
        self._inner = runner.start
        runner.start = self.start  # type: ignore[method-assign]

    def start(self, plan: Plan) -> Pending:
        def compute() -> list[Result]:
            self.waits.set()
            assert self.open.wait(LIMIT_S)
            return self._inner(plan).result()

        return Pending(compute)


class Served:
    """An engine with its toy parts, and requests to it by number."""

    def __init__(self, blocks: int = 64, seats: int = 8, budget: int = 64, **options: Any) -> None:
        self.blocks = BlockManager(blocks, 4)
        self.scheduler = Scheduler(self.blocks, Limits(seats, budget, CONTEXT), [EOS])
        self.runner = ToyRunner(blocks, 4)
        self.engine = Engine(self.runner, self.scheduler, lambda _: Words(), **options)
        self.numbers = iter(range(1, 10_000))

    def ask(self, prompt: list[int], listener: Answer | None = None, **settings: Any) -> Answer:
        answer = listener or Answer()
        self.last = self.sequence(prompt, **settings)
        self.engine.submit(self.last, answer)
        return answer

    def sequence(self, prompt: list[int], pools: bool = False, **settings: Any) -> Sequence:
        sampling = Sampling(**{"max_tokens": 12, "ignore_eos": True, **settings})
        return sequence(next(self.numbers), prompt, sampling, pools=pools)

    def expected(self) -> list[int]:
        prompt = self.last.tokens[: self.last.prompt_length]
        return alone(prompt, self.last.sampling, self.last.seed, CONTEXT)

    def quiet(self) -> None:
        """Stops the engine, after which no block may be in use."""
        self.engine.stop(LIMIT_S)
        self.blocks.check(self.scheduler.running)
        assert self.blocks.free == self.blocks.blocks
        assert self.runner.closed


Serve = Callable[..., Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts engines (``serve(seats=1)``) that end with the test; ``gated`` ones wait for their gate in each step."""
    started: list[Served] = []

    def start(**options: Any) -> Served:
        served = Served(**options)
        served.engine.start()
        started.append(served)
        return served

    yield start
    for served in started:
        served.engine.stop()


def gated(serve: Serve, **options: Any) -> tuple[Served, Gate]:
    served = serve(**options)
    return served, Gate(served.runner)


def test_an_answer_comes_as_tokens_and_text_and_ends_with_what_it_used(serve: Serve) -> None:
    served = serve()
    answer = served.ask([5, 6, 7])
    assert answer.done.finish is Finish.LENGTH
    assert answer.tokens == served.expected()
    assert answer.text == spelled(served.expected())
    assert (answer.done.usage.prompt, answer.done.usage.cached, answer.done.usage.completion) == (3, 0, 12)
    timings = answer.done.timings
    assert min(timings.queue_ms, timings.prefill_ms, timings.decode_ms) >= 0
    assert timings.batch == 1.0
    served.quiet()


def test_the_token_that_ends_an_answer_is_counted_and_not_shown(serve: Serve) -> None:
    served = serve()
    stop = alone([5, 6, 7], Sampling(max_tokens=12, ignore_eos=True), 1, CONTEXT)[4]
    answer = served.ask([5, 6, 7], stop_token_ids=(stop,))
    assert answer.done.finish is Finish.STOP
    assert answer.tokens == served.expected()
    assert answer.text == spelled(served.expected()[:-1])
    assert answer.done.usage.completion == len(answer.tokens)


@pytest.mark.parametrize("guesses", [False, True])
def test_a_stop_string_across_tokens_ends_an_answer_before_it(serve: Serve, guesses: bool) -> None:
    right = alone([5, 6, 7], Sampling(max_tokens=30, ignore_eos=True), 1, CONTEXT)
    served = serve(speculator=Speculator(Knowing(0.9)) if guesses else None)
    stop = spelled(right)[10:16]
    answer = served.ask([5, 6, 7], max_tokens=30, stop=(stop,))
    assert answer.done.finish is Finish.STOP
    assert answer.text == spelled(right)[: spelled(right).index(stop)]
    assert answer.tokens == right[: len(answer.tokens)]
    assert answer.done.usage.completion == len(answer.tokens) == 7  # its end is shown when the next token has come
    served.quiet()


def test_what_might_have_become_a_stop_string_is_shown_at_the_end(serve: Serve) -> None:
    served = serve()
    right = alone([5, 6, 7], Sampling(max_tokens=12, ignore_eos=True), 1, CONTEXT)
    answer = served.ask([5, 6, 7], stop=(spelled(right)[-4:] + "and more",))
    assert answer.done.finish is Finish.LENGTH
    assert answer.text == spelled(right)


def test_a_text_is_embedded_and_continued_by_no_token(serve: Serve) -> None:
    served = serve(budget=8)
    answer = served.ask([5, 6, 7] * 5, pools=True)
    assert answer.done.embedding is not None
    assert len(answer.done.embedding) == 15
    assert answer.deltas == []
    assert answer.done.usage.completion == 0


def test_the_second_of_two_equal_prompts_says_what_was_cached(serve: Serve) -> None:
    served = serve()
    assert served.ask(list(range(1, 12))).done
    second = served.ask(list(range(1, 12)))
    assert second.done.usage.cached == 8
    load = served.engine.load()
    assert (load.prefix_asked, load.prefix_found) == (22, 8)
    assert (load.prompt_tokens, load.generated_tokens) == (22, 24)


def test_who_leaves_is_let_go_before_the_next_step(serve: Serve) -> None:
    served, gate = gated(serve, seats=1)
    leaving, waiting = served.ask([1, 2, 3]), served.ask([4, 5, 6])
    assert gate.waits.wait(LIMIT_S)
    for number in (1, 2, 2, 77):
        served.engine.cancel(number)
    gate.open.set()
    assert leaving.done.finish is Finish.CANCELLED
    assert waiting.done.finish is Finish.CANCELLED
    assert leaving.done.usage.completion <= 1
    served.quiet()


def test_one_whose_listener_has_gone_is_cancelled_and_the_others_go_on(serve: Serve) -> None:
    class Gone(Answer):
        def __call__(self, event: Event) -> None:
            super().__call__(event)
            raise RuntimeError("Event loop is closed")

    served = serve()
    gone = served.ask([1, 2, 3], Gone(), max_tokens=200)
    other = served.ask([4, 5, 6])
    assert other.tokens == served.expected() or other.done
    assert gone.done.finish is Finish.CANCELLED
    served.quiet()


def test_a_full_queue_refuses_and_takes_again_when_one_has_ended(serve: Serve) -> None:
    served, gate = gated(serve, seats=1, queue=1)
    first, _ = served.ask([1, 2, 3]), served.ask([1, 2, 3])
    with pytest.raises(Overloaded, match="2 requests"):
        served.ask([1, 2, 3])
    assert served.engine.load().waiting >= 1
    gate.open.set()
    assert first.done
    assert served.ask([1, 2, 3]).done


def test_prompts_that_cannot_be_served_are_refused_at_once(serve: Serve) -> None:
    served = serve()
    with pytest.raises(ContextExceeded, match="300 tokens, the context holds 256"):
        served.ask([1] * 300)
    with pytest.raises(InvalidRequest, match="empty"):
        served.ask([])


def test_a_stop_serves_those_it_has_and_takes_no_more(serve: Serve) -> None:
    served, gate = gated(serve)
    answer = served.ask([1, 2, 3])
    assert gate.waits.wait(LIMIT_S)
    stopping = threading.Thread(target=served.engine.stop, args=(LIMIT_S,))
    stopping.start()
    while True:
        try:
            served.ask([4, 5, 6])
        except EngineStopped:
            break
    gate.open.set()
    stopping.join(LIMIT_S)
    assert answer.done.finish is Finish.LENGTH
    served.quiet()


def test_a_stop_without_grace_fails_those_it_has(serve: Serve) -> None:
    served, gate = gated(serve)
    answer = served.ask([1, 2, 3], max_tokens=200)
    assert gate.waits.wait(LIMIT_S)
    gate.open.set()
    served.engine.stop()
    assert isinstance(answer.error, EngineStopped)
    assert served.engine.healthy


def test_a_step_that_hangs_is_noticed_and_everybody_is_told(serve: Serve) -> None:
    told = threading.Event()
    served, gate = gated(serve, step_limit_s=0.05, on_broken=told.set)
    running, waiting = served.ask([1, 2, 3]), served.ask([4, 5, 6])
    assert told.wait(LIMIT_S)
    assert isinstance(running.error, EngineStopped)
    assert isinstance(waiting.error, EngineStopped)
    assert not served.engine.healthy
    with pytest.raises(EngineStopped):
        served.ask([1])
    gate.open.set()


def test_an_engine_that_does_nothing_does_not_hang(serve: Serve) -> None:
    broken = threading.Event()
    served = serve(step_limit_s=0.01, on_broken=broken.set)
    assert served.ask([1, 2], max_tokens=1).done
    assert not broken.wait(0.1)


def test_a_fault_nobody_expected_ends_the_engine_and_everybody_is_told(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    told = threading.Event()
    served = serve(on_broken=told.set)

    def start(plan: Plan) -> Pending:
        raise ZeroDivisionError("a device that is gone")

    served.runner.start = start  # type: ignore[method-assign]
    assert isinstance(served.ask([1, 2, 3]).error, EngineStopped)
    assert told.wait(LIMIT_S)
    assert not served.engine.healthy
    assert [record.message for record in caplog.records] == ["the engine's loop broke"]


def test_steps_out_of_memory_are_made_smaller_and_every_answer_is_right(serve: Serve) -> None:
    served = serve(budget=64)
    served.runner.memory = 10
    answers = []
    for number in range(1, 6):
        answers.append((served.ask([number, 2, 3] * 7), served.expected()))
    for answer, expected in answers:
        assert answer.done
        assert answer.tokens == expected
    assert served.engine.load().token_budget < 64
    served.quiet()


def test_one_that_is_out_of_memory_even_alone_fails_and_the_others_do_not(serve: Serve) -> None:
    served = serve()
    inner = served.runner.run

    def run(plan: Plan) -> list[Result]:
        if any(row.sequence.id == 1 for row in plan.rows):
            raise OutOfMemory("no memory for sequence 1")
        return inner(plan)

    served.runner.run = run  # type: ignore[method-assign]
    large = served.ask([9] * 20)
    other = served.ask([4, 5, 6])
    assert isinstance(large.error, OutOfMemory)
    assert other.done
    assert other.tokens == served.expected()
    served.quiet()


def test_what_came_before_a_failure_is_told_before_it(serve: Serve) -> None:
    served = serve()
    inner = served.runner.start

    def start(plan: Plan) -> Pending:
        if served.runner.steps:
            raise OutOfMemory("no memory after the first step")
        return inner(plan)

    served.runner.start = start  # type: ignore[method-assign]
    answer = served.ask([4, 5, 6])
    assert isinstance(answer.error, OutOfMemory)
    assert answer.tokens == served.expected()[:1]
    served.quiet()


def test_a_poisoned_request_fails_alone(serve: Serve) -> None:
    served = serve(budget=16)
    served.runner.poisoned.add(1)
    ill = served.ask([9] * 40)
    well = served.ask([9] * 38 + [1, 1])
    assert isinstance(ill.error, Poisoned)
    assert well.done
    assert well.tokens == served.expected()
    served.quiet()


class Knowing:
    """Guesses the right tokens, each with a probability, and remembers of whom it knows."""

    def __init__(self, chance: float) -> None:
        self.chance = chance
        self.random = Random(5)
        self.known: set[int] = set()

    def propose(self, sequences: list[Sequence], most: list[int]) -> None:
        for one, limit in zip(sequences, most, strict=True):
            self.known.add(one.id)
            prompt = one.tokens[: one.prompt_length]
            right = alone(prompt, Sampling(one.generated + limit, ignore_eos=True), one.seed, CONTEXT)
            one.drafts = [
                token if self.random.random() < self.chance else (token + 1) % VOCABULARY
                for token in right[one.generated :]
            ]

    def forget(self, one: Sequence) -> None:
        self.known.discard(one.id)


def test_guesses_change_no_answer_and_are_counted(serve: Serve) -> None:
    served = serve(speculator=Speculator(Knowing(0.8)))
    answer = served.ask([5, 6, 7], max_tokens=40)
    assert answer.done.timings.accepted > 0
    assert answer.tokens == served.expected()
    assert len(answer.deltas) < 40
    load = served.engine.load()
    assert (load.drafted, load.accepted) == (answer.done.timings.drafted, answer.done.timings.accepted)


def test_soak(serve: Serve) -> None:
    """200 requests together: mixed lengths, shared beginnings, cancellations, faults. No block is lost."""
    random = Random(11)
    proposer = Knowing(0.7)
    served, gate = gated(serve, blocks=64, seats=8, budget=40, speculator=Speculator(proposer))
    served.runner.memory = 36
    served.runner.poisoned.update(range(17, 201, 31))
    beginnings = [[random.randrange(1, VOCABULARY) for _ in range(24)] for _ in range(3)]
    asked: list[tuple[Answer, Sequence]] = []
    for _ in range(200):
        prompt = random.choice(beginnings)[: random.randrange(25)] + random.choices(
            range(1, 9), k=random.randint(1, 30)
        )
        length, whole, pools = random.randint(1, 60), random.random() < 0.5, random.random() < 0.1
        answer = served.ask(prompt, max_tokens=length, ignore_eos=whole, pools=pools)
        asked.append((answer, served.last))
    early, late = set(range(3, 200, 11)), set(range(5, 200, 13))
    for number in early:
        served.engine.cancel(number)
    gate.open.set()
    for number in sorted(late):
        assert asked[number - 1][0].begun.wait(LIMIT_S)
        served.engine.cancel(number)
    ends: Counter[str] = Counter()
    for answer, one in asked:
        if isinstance(answer.end, Failed):
            assert isinstance(answer.error, Poisoned)
            assert one.id in served.runner.poisoned
            ends["poisoned"] += 1
            continue
        assert one.id not in served.runner.poisoned or one.id in early
        assert answer.done.finish is not Finish.CANCELLED or one.id in early | late
        ends[answer.done.finish] += 1
        if not one.pools:
            expected = alone(one.tokens[: one.prompt_length], one.sampling, one.seed, CONTEXT)
            assert answer.tokens == expected[: len(answer.tokens)]
            assert answer.done.finish is Finish.CANCELLED or answer.tokens == expected
    assert all(ends[end] for end in ("poisoned", "cancelled", "stop", "length")), ends
    load = served.engine.load()
    assert load.preemptions
    assert load.prefix_found
    assert load.accepted
    served.quiet()
    assert not proposer.known
