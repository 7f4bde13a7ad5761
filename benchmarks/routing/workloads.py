"""What is asked: chat, retrieval with long prompts, agents with many turns, bursts, callers bound to a precision."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise

from benchmarks.routing.engine import BLOCK_TOKENS
from benchmarks.routing.request import Request

_LUCK = 0.05
"""The same request repeated varies by 2 to 8 %."""
_COUNTING = 0.05
"""Prompt tokens are estimated from bytes."""


@dataclass(slots=True)
class Dice:
    """Draws requests. ``engines`` is their number, since each request has its own luck on each of them."""

    random: random.Random
    engines: int
    numbers: Iterator[int] = field(default_factory=count)

    def between(self, low: float, high: float) -> float:
        """Draw a length or a time whose logarithm is even."""
        return low * math.exp(math.log(high / low) * self.random.random())

    def request(self, at: float, prompt: float, output: float, caller: str, **more: object) -> Request:
        """Make a request of about these lengths."""
        number = next(self.numbers)
        prompt_tokens, output_tokens = max(8, round(prompt)), max(2, round(output))
        return Request(
            number=number,
            at=at,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            estimated_tokens=max(8, round(prompt_tokens * self.random.lognormvariate(0.0, _COUNTING))),
            caller=caller,
            luck=tuple(self.random.lognormvariate(0.0, _LUCK) for _ in range(self.engines)),
            **{"prefix": self.prefix(number, prompt_tokens)} | more,  # type: ignore[arg-type]
        )

    def prefix(self, seed: int, tokens: int) -> tuple[int, ...]:
        """Return the blocks of a prompt that is new."""
        return tuple(hash((seed, i)) for i in range(tokens // BLOCK_TOKENS))

    def arrivals(self, n: int, gap_s: float) -> list[float]:
        """Return the times of a Poisson process."""
        at, times = 0.0, []
        for _ in range(n):
            at += self.random.expovariate(1.0 / gap_s)
            times.append(at)
        return times


def chat(dice: Dice, n: int, gap_s: float) -> list[Request]:
    """Short questions, answers of some hundred tokens, from two callers who differ."""
    requests = []
    for at in dice.arrivals(n, gap_s):
        brief = dice.random.random() < 0.4
        output = dice.random.gauss(40, 12) if brief else dice.random.gauss(180, 50)
        requests.append(dice.request(at, dice.between(30, 700), output, "brief" if brief else "talkative"))
    return requests


def rag(dice: Dice, n: int, gap_s: float) -> list[Request]:
    """Long prompts, short answers."""
    return [
        dice.request(at, dice.between(900, 3500), dice.random.gauss(70, 20), "search") for at in dice.arrivals(n, gap_s)
    ]


def agents(dice: Dice, n: int, gap_s: float) -> list[Request]:
    """Conversations of four to twelve turns that begin with the same instructions and grow; little pause between."""
    requests, turns_left = [], n
    instructions = dice.prefix(-1, 1024)
    at = 0.0
    while turns_left > 0:
        turns = dice.random.randint(4, 12)
        at += dice.random.expovariate(1.0 / (gap_s * turns))
        turns_left -= turns
        requests.append(_conversation(dice, at, turns, instructions))
    return requests


def _conversation(dice: Dice, at: float, turns: int, instructions: tuple[int, ...]) -> Request:
    own = dice.prefix(next(dice.numbers), 16384)
    length = 1024 + dice.between(60, 400)
    chain = []
    for _ in range(turns):
        output = max(4, dice.random.gauss(60, 20))
        blocks = (*instructions, *own)[: int(length) // BLOCK_TOKENS]
        chain.append(
            dice.request(at, length, output, "agent", prefix=blocks, pause_s=dice.random.expovariate(1.0 / 0.8))
        )
        length += output + dice.between(40, 400)
    for turn, then in pairwise(chain):
        turn.then = then
    return chain[0]


def bursts(dice: Dice, n: int, gap_s: float) -> list[Request]:
    """Nothing for a while, then four to ten requests at once."""
    requests: list[Request] = []
    at = 0.0
    while len(requests) < n:
        size = dice.random.randint(4, 10)
        at += dice.random.expovariate(1.0 / (gap_s * size))
        for _ in range(size):
            requests.append(
                dice.request(at + dice.random.random() * 0.3, dice.between(40, 1500), dice.between(20, 160), "batch")
            )
    return sorted(requests, key=lambda request: request.at)


def precise(dice: Dice, n: int, gap_s: float) -> list[Request]:
    """Half of the callers name a precision, and so have fewer engines to go to."""
    requests = chat(dice, n, gap_s)
    for request in requests:
        request.selector = dice.random.choice(("", "", "", "bf16", "fp16+", "int8+", "int8", "int4"))
    return requests


def mixed(dice: Dice, n: int, gap_s: float) -> list[Request]:
    """All of them at once."""
    kinds: tuple[tuple[Callable[[Dice, int, float], list[Request]], float], ...] = (
        (chat, 0.35),
        (rag, 0.15),
        (agents, 0.25),
        (bursts, 0.1),
        (precise, 0.15),
    )
    requests = [request for draw, share in kinds for request in draw(dice, max(1, round(n * share)), gap_s / share)]
    return sorted(requests, key=lambda request: request.at)
