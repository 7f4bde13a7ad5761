"""The prompts of the suite, by category. ``VERSION`` changes with any of them; verdicts say which they come from."""

from __future__ import annotations

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
