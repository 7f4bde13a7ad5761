"""The prompts of the suite, by category. ``VERSION`` changes with any of them; verdicts say which they come from."""

from __future__ import annotations

from collections.abc import Sequence

from measure.quality.prompts import Prompt
from measure.quality.suite.context import CONTEXT
from measure.quality.suite.format import FORMAT
from measure.quality.suite.instructions import INSTRUCTIONS
from measure.quality.suite.reasoning import REASONING
from measure.quality.suite.repetition import REPETITION
from measure.quality.suite.tools import TOOLS
from measure.quality.suite.turns import TURNS

VERSION = "1"

CATEGORIES = ("format", "instructions", "reasoning", "context", "turns", "repetition", "tools")

SUITE: tuple[Prompt, ...] = (*FORMAT, *INSTRUCTIONS, *REASONING, *CONTEXT, *TURNS, *REPETITION, *TOOLS)
"""All prompts. Most answers are short; the long ones, under ``repetition``, are there to see whether they end."""


def spread(prompts: Sequence[Prompt], limit: int) -> list[Prompt]:
    """Return ``limit`` of the prompts (all, when there are no more), evenly over their order and so over categories."""
    count = len(prompts)
    if limit >= count:
        return list(prompts)
    return [prompts[(2 * place + 1) * count // (2 * limit)] for place in range(limit)]
