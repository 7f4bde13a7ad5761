"""The whole engine under the loop over a real, tiny model: nothing is lost, and each answer is what it is alone."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
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
from engine.speculative import NgramProposer, Speculator

LIMIT_S = 120.0
POISON = 500
EOS = 1
BLOCKS = 24
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


def serve(
    runner: Runner, blocks: BlockManager, limits: Limits, work: list[Answer], leave: set[int], early: int
) -> Load:
    """Serves all of ``work`` together; of those that ``leave``, every ``early``-th does so before it began."""
    scheduler = Scheduler(blocks, limits, [EOS])
    engine = Engine(runner, scheduler, lambda _: Silent(), Speculator(NgramProposer(shortest=1)))
    for answer in work:
        engine.submit(answer.sequence, answer)
    for number in sorted(leave)[::early]:
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


def test_soak(tiny: Callable[[str], Path]) -> None:
    random = Random(7)
    beginnings = [[random.randrange(3, 400) for _ in range(100)] for _ in range(3)]
    work = [Answer(request(number, random, beginnings)) for number in range(200)]
    engine = runner(tiny("llama"), blocks=BLOCKS)
    engine.model._embedding[POISON] = float("nan")  # type: ignore[attr-defined]
    leaving = set(range(3, 200, 13))
    load = serve(engine, BlockManager(BLOCKS, BLOCK), Limits(8, 128, CONTEXT), work, leaving, early=3)
    assert load.preemptions
    assert load.prefix_found
    assert load.accepted

    alone = runner(tiny("llama"), blocks=BLOCKS)
    ends: Counter[str] = Counter()
    for answer in work:
        one = answer.sequence
        if isinstance(answer.end, Failed):
            assert isinstance(answer.end.error, Poisoned)
            assert POISON in one.tokens
            ends["poisoned"] += 1
            continue
        assert isinstance(answer.end, Done)
        finish = answer.end.finish
        ends[finish] += 1
        assert finish is not Finish.CANCELLED or one.id in leaving
        if one.pools:
            assert answer.tokens == []
            assert (answer.end.embedding is None) == (finish is Finish.CANCELLED)
            continue
        again = Sequence(one.id, one.prompt_length, one.tokens[: one.prompt_length], one.sampling, seed=one.seed)
        whole = Answer(again)
        serve(alone, BlockManager(BLOCKS, BLOCK, prefix_cache=False), Limits(1, 512, CONTEXT), [whole], set(), 1)
        assert answer.tokens == whole.tokens[: len(answer.tokens)]
        assert finish is Finish.CANCELLED or len(answer.tokens) == len(whole.tokens)
    assert all(ends[end] for end in ("poisoned", "cancelled", "stop", "length")), ends
