"""What is asked: requests of mixed shapes, the same ones in every run."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from measure.prompts import prompt

SEED = 7
FOLLOW_UP_EVERY = 6
PROMPT_TOKENS = (16, 1100)
OUTPUT_TOKENS = (8, 96)
STREAMED = 0.7


@dataclass(frozen=True, slots=True)
class Shape:
    """One request: about ``prompt_tokens`` to read, exactly ``output_tokens`` to write.

    A ``follow_up`` goes on with the conversation of the request before it.
    """

    number: int
    prompt_tokens: int
    output_tokens: int
    stream: bool
    follow_up: bool = False

    def text(self, variant: int = 0) -> str:
        """Return the prompt. Variants differ in their first words alone: as long, and in no prefix cache."""
        return f"{variant}/{self.number}: {prompt(self.prompt_tokens, self.number)}"


def shapes(count: int, first: int = 0, *, follow_ups: bool = False) -> list[Shape]:
    """Return requests numbered from ``first`` on, lengths spread evenly over their logarithm.

    With ``follow_ups``, the last of every ``FOLLOW_UP_EVERY`` is one.
    """
    random = Random(SEED + first)
    last = FOLLOW_UP_EVERY - 1
    return [_shape(first + i, random, follow_up=follow_ups and i % FOLLOW_UP_EVERY == last) for i in range(count)]


def _shape(number: int, random: Random, *, follow_up: bool) -> Shape:
    length = _spread(PROMPT_TOKENS, random)
    return Shape(
        number=number,
        prompt_tokens=min(length, 100) if follow_up else length,
        output_tokens=_spread(OUTPUT_TOKENS, random),
        stream=random.random() < STREAMED,
        follow_up=follow_up,
    )


def _spread(between: tuple[int, int], random: Random) -> int:
    low, high = between
    return round(low * (high / low) ** random.random())
