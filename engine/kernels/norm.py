"""RMS normalisation (Zhang & Sennrich 2019), with the residual's addition in the same pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.kernels.launch import Kernel, power_of_two, runs

if TYPE_CHECKING:
    import triton.language as tl

TILE = 2048
"""Values that a program normalises when its rows are shorter than that."""


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """``x`` [..., H] (plus ``residual``) normalised over its last dimension, and the sum that was normalised.

    Computed in fp32, rounded once. Without a residual the sum is ``x`` itself.
    """
    if not runs(x):
        return reference(x, weight, eps, residual)
    size = x.shape[-1]
    # [T, R, H], so that heads inside a fused projection are read where they are
    rows = x.flatten(0, -3) if x.dim() > 2 else x.reshape(-1, 1, size)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = x if residual is None else torch.empty_like(out)
    count, block = rows.shape[0] * rows.shape[1], power_of_two(size)
    height = max(TILE // block, 1)
    strides = (rows.stride(0), rows.stride(1))
    added = x if residual is None else residual.contiguous()
    facts = (count, rows.shape[1], *strides, size, eps, residual is not None, height, block)
    _normalise[(-(-count // height),)](rows, added, weight, out, total, *facts, num_warps=8 if block > 2048 else 4)
    return out, total


@Kernel
def _normalise(  # type: ignore[no-untyped-def]
    x, residual, weight, out, total, count, inner, outer_stride, inner_stride, size, eps,
    ADDS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    there = (row < count) & (column < size)
    place = (row // inner).to(tl.int64) * outer_stride + row % inner * inner_stride + column
    flat = row.to(tl.int64) * size + column
    wide = tl.load(x + place, there, 0.0).to(tl.float32)
    if ADDS:
        rounded = (wide + tl.load(residual + flat, there, 0.0).to(tl.float32)).to(total.dtype.element_ty)
        tl.store(total + flat, rounded, there)
        wide = rounded.to(tl.float32)
    scale = tl.load(weight + column, column < size, 0.0).to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(wide * wide, 1)[:, None] / size + eps)
    tl.store(out + flat, (wide * inverse * scale).to(out.dtype.element_ty), there)


def reference(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """``rms_norm`` in plain torch."""
    total = x if residual is None else x + residual
    scale = weight.float()
    return torch.nn.functional.rms_norm(total.float(), scale.shape, scale, eps).to(x.dtype), total
