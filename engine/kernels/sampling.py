"""Helpers of the sampler: numbers that depend on seed and position alone, masks, and one pass over the logits."""

from __future__ import annotations

import torch
from torch import Tensor


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """A number in [0, 1) for each seed and position ([N] int64 each), the same on every device: [N] fp32.

    Two rounds of a 32-bit integer hash (Wellons' lowbias32), which is what a counter-based generator needs.
    """
    return uniform_reference(seeds, positions)


def uniform_reference(seeds: Tensor, positions: Tensor) -> Tensor:
    """``uniform`` in plain torch."""
    low = seeds & 0xFFFFFFFF
    mixed = _mix(_mix(low ^ _mix(seeds >> 32 & 0xFFFFFFFF)) ^ (positions & 0xFFFFFFFF))
    return (mixed >> 8).float() * 2.0**-24


def _mix(x: Tensor) -> Tensor:
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


def apply_bitmask(logits: Tensor, bitmask: Tensor) -> None:
    """Set those of ``logits`` [N, V] to -inf, in place, whose bit in ``bitmask`` [N, ceil(V / 32)] int32 is 0."""
    bitmask_reference(logits, bitmask)


def bitmask_reference(logits: Tensor, bitmask: Tensor) -> None:
    """``apply_bitmask`` in plain torch."""
    bits = bitmask.unsqueeze(-1) >> torch.arange(32, dtype=torch.int32, device=bitmask.device) & 1
    logits.masked_fill_(bits.flatten(-2)[:, : logits.shape[-1]] == 0, float("-inf"))


def survey(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The best token of each row of ``logits`` [N, V] (the lowest of equals), and its logarithm of the sum of exp.

    ([N] int64, [N] fp32.) The second is not finite when a row is poisoned: it has a NaN, or +inf, or nothing but -inf.
    """
    return survey_reference(logits)


def survey_reference(logits: Tensor) -> tuple[Tensor, Tensor]:
    """``survey`` in plain torch."""
    return logits.argmax(-1), logits.float().logsumexp(-1)
