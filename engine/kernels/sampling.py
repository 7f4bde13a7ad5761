"""One pass over the logits for what every choice needs: the best token, and the sum that makes probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.kernels.launch import Kernel, runs

if TYPE_CHECKING:
    import triton.language as tl

TILE = 4096
"""Logits that a program reads at once."""


def survey(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The best token of each row of ``logits`` [N, V] (the lowest of equals), and its logarithm of the sum of exp.

    ([N] int64, [N] fp32.) The second is not finite when a row is poisoned: it has a NaN, or +inf, or nothing but -inf.
    """
    if not runs(logits):
        return reference(logits)
    logits = logits.contiguous()
    rows, size = logits.shape
    best = torch.empty(rows, dtype=torch.int64, device=logits.device)
    total = torch.empty(rows, dtype=torch.float32, device=logits.device)
    _survey[(rows,)](logits, best, total, size, TILE, num_warps=8)
    return best, total


@Kernel
def _survey(logits, best, total, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    row = tl.program_id(0).to(tl.int64)
    most = float("-inf")
    where = 0
    summed = 0.0
    for start in range(0, size, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(logits + row * size + column, column < size, float("-inf")).to(tl.float32)
        here, at = tl.max(value, 0, return_indices=True)
        where = tl.where(here > most, start + at, where)
        greater = tl.maximum(most, here)
        base = tl.where(greater == float("-inf"), 0.0, greater)  # all masked so far: exp(-inf), not of NaN
        summed = summed * tl.exp(most - base) + tl.sum(tl.exp(value - base), 0)
        most = greater
    base = tl.where(most == float("-inf"), 0.0, most)
    tl.store(best + row, where)
    tl.store(total + row, base + tl.log(summed))


def reference(logits: Tensor) -> tuple[Tensor, Tensor]:
    """``survey`` in plain torch."""
    return logits.argmax(-1), logits.float().logsumexp(-1)
