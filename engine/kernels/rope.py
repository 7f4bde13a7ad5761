"""Rotary position embedding (Su et al. 2021) in the half-split form of Hugging Face's checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.kernels.launch import Kernel, power_of_two, runs

if TYPE_CHECKING:
    import triton.language as tl

HEADS = 8
"""Heads that a program rotates."""


def rope(q: Tensor, k: Tensor, cos_sin: Tensor, positions: Tensor) -> None:
    """Rotate ``q`` [T, Hq, D] and ``k`` [T, Hk, D] in place, by ``positions`` [T].

    ``cos_sin`` [P, D] holds D / 2 cosines and then D / 2 sines for every position. Both may be views into one fused
    projection; their last dimension has to be contiguous.
    """
    if not runs(q):
        return reference(q, k, cos_sin, positions)
    half = q.shape[-1] // 2
    strides = (q.stride(0), q.stride(1), k.stride(0), k.stride(1))
    grid = (q.shape[0], -(-q.shape[1] // HEADS) - (-k.shape[1] // HEADS))
    facts = (*strides, q.shape[1], k.shape[1], half, HEADS, power_of_two(half))
    _rotate[grid](q, k, cos_sin.contiguous(), positions, *facts, num_warps=2)
    return None


@Kernel
def _rotate(  # type: ignore[no-untyped-def]
    q, k, cos_sin, positions, q_row, q_head, k_row, k_head, q_heads, k_heads, half,
    HEADS: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    queries = tl.cdiv(q_heads, HEADS)
    if group < queries:
        head = group * HEADS + tl.arange(0, HEADS)[:, None]
        base = q + row * q_row + head * q_head
        mine = head < q_heads
    else:
        head = (group - queries) * HEADS + tl.arange(0, HEADS)[:, None]
        base = k + row * k_row + head * k_head
        mine = head < k_heads
    column = tl.arange(0, BLOCK)[None, :]
    there = mine & (column < half)
    angle = cos_sin + tl.load(positions + row).to(tl.int64) * 2 * half + column
    cos = tl.load(angle, column < half, 0.0).to(tl.float32)
    sin = tl.load(angle + half, column < half, 0.0).to(tl.float32)
    first = tl.load(base + column, there, 0.0).to(tl.float32)
    second = tl.load(base + half + column, there, 0.0).to(tl.float32)
    tl.store(base + column, (first * cos - second * sin).to(q.dtype.element_ty), there)
    tl.store(base + half + column, (second * cos + first * sin).to(q.dtype.element_ty), there)


def reference(q: Tensor, k: Tensor, cos_sin: Tensor, positions: Tensor) -> None:
    """``rope`` in plain torch."""
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
    for heads in (q, k):
        first, second = heads.float().chunk(2, dim=-1)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
        heads.copy_(turned)
