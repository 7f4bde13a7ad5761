"""The whole engine under the loop over a real, tiny model: nothing is lost, and each answer is what it is alone."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Set
from pathlib import Path
from random import Random

from driving import BLOCK, runner

from engine.block_manager import BlockManager
from engine.engine import Engine, Load
from engine.errors import Poisoned
from engine.events import Delta, Done, Event, Failed
from engine.request import Finish, Sampling, Sequence
from engine.runner import Runner
from engine.scheduler import Limits, Scheduler
from engine.speculative import Speculator

LIMIT_S = 120.0
POISON = 500
EOS = 1
BLOCKS = 16
CONTEXT = 320


class Silent:
    """No text: tokens are what is compared."""

    def feed(self, tokens: tuple[int, ...]) -> str:
        return ""

    def finish(self) -> str:
        return ""


class Answer:
    """Listens to one request."""

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self.tokens: list[int] = []
        self.end: Done | Failed | None = None
        self.begun = threading.Event()
        self.ended = threading.Event()

    def __call__(self, event: Event) -> None:
        assert self.end is None
        if isinstance(event, Delta):
            self.tokens += event.tokens
        else:
            self.end = event
            self.ended.set()
        self.begun.set()


class Foreseer:
    """Guesses what each answer is alone, but for every fifth token."""

    def __init__(self, alone: dict[int, list[int]]) -> None:
        self._alone = alone

    def propose(self, sequences: list[Sequence], most: list[int]) -> None:
        for sequence, limit in zip(sequences, most, strict=True):
            answer, begun = self._alone.get(sequence.id, []), len(sequence.tokens) - sequence.prompt_length
            guesses = [3 if place % 5 == 4 else token for place, token in enumerate(answer)]
            sequence.drafts = guesses[begun : begun + limit]

    def forget(self, sequence: Sequence) -> None:
        """Nothing is kept."""


def serve(
    runner: Runner,
    blocks: BlockManager,
    limits: Limits,
    work: list[Answer],
    leave: Set[int] = frozenset(),
    speculator: Speculator | None = None,
) -> Load:
    """Serves all of ``work`` together; of those that ``leave``, every third does so before it began."""
    scheduler = Scheduler(blocks, limits, [EOS])
    engine = Engine(runner, scheduler, lambda _: Silent(), speculator)
    for answer in work:
        engine.submit(answer.sequence, answer)
    for number in sorted(leave)[::3]:
        engine.cancel(number)
    engine.start()
    for number in sorted(leave):
        assert work[number].begun.wait(LIMIT_S)
        engine.cancel(number)
    for answer in work:
        assert answer.ended.wait(LIMIT_S)
    engine.stop(LIMIT_S)
    blocks.check(scheduler.running)
    assert blocks.free == blocks.blocks
    return engine.load()


def request(number: int, random: Random, beginnings: list[list[int]]) -> Sequence:
    prompt = random.choice(beginnings)[: random.randrange(100)] + random.choices(range(3, 400), k=random.randint(1, 40))
    if number % 40 == 7:
        prompt[random.randrange(len(prompt))] = POISON
    sampling = Sampling(
        max_tokens=random.randint(1, 60),
        temperature=random.choice([0.0, 0.0, 0.0, 0.8]),
        ignore_eos=random.random() < 0.3,
        repetition_penalty=random.choice([1.0, 1.0, 1.1]),
    )
    priority, pools = random.choice([0, 0, 0, 1, -1]), number % 23 == 5
    return Sequence(number, len(prompt), prompt, sampling, priority, pools=pools, seed=number)


def poisoned(path: Path) -> Runner:
    """Whoever has read or said ``POISON`` gets no further."""
    engine = runner(path, blocks=BLOCKS)
    engine.model._embedding[POISON] = float("nan")  # type: ignore[attr-defined]
    return engine


def test_soak(tiny: Callable[[str], Path]) -> None:
    random = Random(7)
    beginnings = [[random.randrange(3, 400) for _ in range(100)] for _ in range(3)]
    work = [Answer(request(number, random, beginnings)) for number in range(200)]
    lone, alone = poisoned(tiny("llama")), dict[int, Answer]()
    for asked in (answer.sequence for answer in work if not answer.sequence.pools):
        one = Answer(Sequence(asked.id, asked.prompt_length, list(asked.tokens), asked.sampling, seed=asked.seed))
        serve(lone, BlockManager(BLOCKS, BLOCK, prefix_cache=False), Limits(1, 512, CONTEXT), [one])
        alone[asked.id] = one

    leaving = set(range(3, 200, 13))
    speculator = Speculator(Foreseer({number: one.tokens for number, one in alone.items()}))
    blocks = BlockManager(BLOCKS, BLOCK)
    load = serve(poisoned(tiny("llama")), blocks, Limits(8, 128, CONTEXT), work, leaving, speculator)
    assert load.preemptions
    assert load.prefix_found
    assert 0 < load.accepted < load.drafted

    ends: Counter[str] = Counter()
    for answer in work:
        asked = answer.sequence
        finish = answer.end.finish if isinstance(answer.end, Done) else "poisoned"
        ends[finish] += 1
        assert finish is not Finish.CANCELLED or asked.id in leaving
        if isinstance(answer.end, Failed):
            assert isinstance(answer.end.error, Poisoned)
        if asked.pools:
            assert answer.tokens == []
            assert not isinstance(answer.end, Done) or (answer.end.embedding is None) == (finish is Finish.CANCELLED)
            assert (finish == "poisoned") == (POISON in asked.tokens) or finish is Finish.CANCELLED
            continue
        one = alone[asked.id]
        assert answer.tokens == one.tokens[: len(answer.tokens)]
        assert finish is Finish.CANCELLED or isinstance(answer.end, Failed) == isinstance(one.end, Failed)
        assert finish in (Finish.CANCELLED, "poisoned") or len(answer.tokens) == len(one.tokens)
    assert all(ends[end] for end in ("poisoned", "cancelled", "stop", "length")), ends
