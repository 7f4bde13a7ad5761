"""What a benchmark measures: prompt lengths, generation limits, concurrency; in which order and how far. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from measure.records import Cell, Kind, Record
from policies.types import Deployment, Operation

SHORTEST = 64
FACTOR = 4
"""Prompt lengths: 64, 256, 1024, …"""
OUTPUT_TOKENS = (32, 128)
CONCURRENCY = 32
RUNS = 5
LEAST_RUNS = 3
SLOWER = 3.0
"""Concurrency is raised until the median TTFT is so many times that of a request alone."""

_CONTEXT_SHARE = 0.9
"""The longest prompt keeps this far below what the context leaves: token counts are aimed at, and a template adds."""
_APART = 1.5
"""The longest prompt is measured beside the regular ones when it is this much longer than the longest of those."""
_TAIL = 16
"""Tokens of a prompt that are new, when its prefix is repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A benchmark as it is asked for; lengths in tokens.

    Without ``prompt_tokens`` they go up to each deployment's context. With ``prefix_cache`` all prompts of a cell begin
    alike, and only the end of each is new.
    """

    prompt_tokens: tuple[int, ...] = ()
    output_tokens: tuple[int, ...] = OUTPUT_TOKENS
    concurrency: int = CONCURRENCY
    prefix_cache: bool = False

    def shapes(self, deployment: Deployment, operation: Operation) -> list[tuple[int, int]]:
        """Return the prompt and output lengths that fit the deployment, the least work first."""
        outputs = (0,) if operation is Operation.EMBEDDINGS else sorted(set(self.output_tokens))
        context = deployment.context
        shortest = _TAIL + 1 if self.prefix_cache else 1
        lengths = sorted(set(self.prompt_tokens)) or _lengths(context, max(outputs))
        fitting = [(p, o) for p in lengths for o in outputs if p >= shortest and (context is None or p + o <= context)]
        return sorted(fitting, key=lambda shape: (shape[0] + shape[1], shape))

    def cell(self, shape: tuple[int, int], concurrency: int, operation: Operation) -> Cell:
        """Return the place of a record in this grid."""
        prompt, output = shape
        prefix = prompt - _TAIL if self.prefix_cache else 0
        return Cell(Kind.GRID, operation, prompt, output, concurrency, prefix)

    def ladder(self) -> list[int]:
        """Return the concurrencies to try, as far as they are worth it: 1, 2, 4, …"""
        steps = [1]
        while steps[-1] * 2 <= self.concurrency:
            steps.append(steps[-1] * 2)
        return steps

    def step_after(self, done: Sequence[Record]) -> int | None:
        """Return the concurrency to measure after these, of one shape and in their order; ``None`` to stop there."""
        if not done:
            return 1
        if why_stopped(done):
            return None
        return next((step for step in self.ladder() if step > done[-1].asked.concurrency), None)


def why_stopped(done: Sequence[Record]) -> str:
    """Return why a shape's concurrency is raised no further, in words; "" when only the limit ends it."""
    alone, last = done[0], done[-1]
    if last.failed:
        return last.failed
    if alone.ttft_s and last.ttft_s and last.ttft_s >= SLOWER * alone.ttft_s:
        return f"TTFT is {last.ttft_s / alone.ttft_s:.1f} times that of one request"
    return ""


def _lengths(context: int | None, output: int) -> list[int]:
    if context is None:
        return [SHORTEST, SHORTEST * FACTOR, SHORTEST * FACTOR**2]
    most = max(1, int((context - output) * _CONTEXT_SHARE))
    lengths = []
    length = SHORTEST
    while length <= most:
        lengths.append(length)
        length *= FACTOR
    if not lengths or most >= _APART * lengths[-1]:
        lengths.append(most)
    return lengths
