"""One step's work as tensors: what the model reads, and nothing about requests."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.request import Plan, Row


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's share: rows ``first`` to ``last`` of the batch, the newest of ``length`` positions in the cache.

    ``start`` is the first one's slot where they lie one behind the other, so that they can be read without a copy.
    """

    first: int
    last: int
    length: int
    start: int | None


@dataclass(frozen=True, slots=True)
class Batch:
    """T positions of S sequences. ``starts`` [S + 1] are their first rows, ``lengths`` [S] their contexts after it.

    ``tokens``, ``positions`` and ``slots`` are [T] int64; a slot is a position's place in the cache, block *
    block_size + offset. ``tables`` [S, B] int32 are the blocks, padded with 0. ``wanted`` [N] are the rows whose logits
    are wanted, None when all are. ``spans`` say the same for the CPU; ``shared`` keeps what layers make for each other.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    starts: Tensor
    lengths: Tensor
    tables: Tensor
    wanted: Tensor | None
    spans: tuple[Span, ...]
    longest: int
    """Positions of the sequence that has most in this batch."""
    shared: dict[object, object] = field(default_factory=dict)


def assemble(plan: Plan, block_size: int, device: torch.device) -> Batch:
    """The batch of a plan's rows, in their order."""
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    starts = [0]
    wanted: list[int] = []
    spans = []
    for row in plan.rows:
        sequence, end = row.sequence, row.start + row.count
        tokens += _tokens(row, end)
        positions += range(row.start, end)
        blocks = sequence.blocks[: -(-end // block_size)]
        slots += [blocks[at // block_size] * block_size + at % block_size for at in range(row.start, end)]
        first = starts[-1]
        starts.append(first + row.count)
        side_by_side = blocks == list(range(blocks[0], blocks[0] + len(blocks)))
        spans.append(Span(first, starts[-1], end, blocks[0] * block_size if side_by_side else None))
        if row.samples and not sequence.pools:
            wanted += range(starts[-1] - 1 - len(sequence.drafts), starts[-1])
    whole = torch.tensor

    def indices(values: list[int], dtype: torch.dtype = torch.int64) -> Tensor:
        return whole(values, dtype=dtype).to(device, non_blocking=True)

    return Batch(
        indices(tokens),
        indices(positions),
        indices(slots),
        indices(starts, torch.int32),
        indices([span.length for span in spans], torch.int32),
        _tables(plan, device),
        None if len(wanted) == len(tokens) else indices(wanted),
        tuple(spans),
        max(row.count for row in plan.rows),
    )


def _tokens(row: Row, end: int) -> list[int]:
    accepted = row.sequence.tokens
    if end <= len(accepted):
        return accepted[row.start : end]
    return accepted[row.start :] + row.sequence.drafts[max(row.start - len(accepted), 0) : end - len(accepted)]


def _tables(plan: Plan, device: torch.device) -> Tensor:
    width = max(len(row.sequence.blocks) for row in plan.rows)
    padded = [row.sequence.blocks + [0] * (width - len(row.sequence.blocks)) for row in plan.rows]
    return torch.tensor(padded, dtype=torch.int32).to(device, non_blocking=True)
