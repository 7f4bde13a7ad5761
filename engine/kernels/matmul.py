"""Linear layers whose weights are int8 or int4 and become the activations' dtype on the way to the product."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from engine.kernels.choice import fastest
from engine.kernels.launch import INTERPRETED, Kernel, dot, power_of_two, runs

if TYPE_CHECKING:
    import triton.language as tl

FEW = 16
"""Rows up to which the weights' bytes decide, so that they are best read once, as they are."""
PROGRAMS = 256
"""Programs that keep a large GPU's processors busy."""


def int8_linear(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None = None) -> Tensor:
    """[..., N] from ``x`` [..., K] and int8 ``weight`` [N, K] with a scale for each output, ``scales`` [N]."""
    if not runs(x):
        return int8_reference(x, weight, scales, bias)
    return _fastest(x, weight, scales, None, bias)


def int4_linear(x: Tensor, weight: Tensor, scales: Tensor, minima: Tensor, bias: Tensor | None = None) -> Tensor:
    """[..., N] from ``x`` [..., K] and uint8 ``weight`` [N, K / 2], two numbers of 0 to 15 a byte, the lower first.

    ``scales`` and ``minima`` are [N, K / group]; a weight is its number times its group's scale plus its minimum
    (GGUF's Q4_1; a zero point z, as in GPTQ and AWQ, is the minimum -z * scale). A group is a multiple of 32.
    """
    if not runs(x):
        return int4_reference(x, weight, scales, minima, bias)
    return _fastest(x, weight, scales, minima, bias)


def _fastest(x: Tensor, weight: Tensor, scales: Tensor, minima: Tensor | None, bias: Tensor | None) -> Tensor:
    """For many rows, our product or cuBLAS's on weights made plain first, by a measurement for these shapes."""
    rows = x.reshape(-1, x.shape[-1])
    fused = partial(_product, rows, weight, scales, minima, bias)
    count = len(rows)
    if count <= FEW or not x.is_cuda:
        return fused().view(*x.shape[:-1], -1)

    def plain() -> Tensor:
        if minima is None:
            return int8_reference(rows, weight, scales, bias)
        return int4_reference(rows, weight, scales, minima, bias)

    groups = 0 if minima is None else minima.shape[1]
    question = ("linear", power_of_two(count), *weight.shape, groups, x.dtype, x.device)
    found = fused() if fastest(question, {"triton": fused, "cublas": plain}) == "triton" else plain()
    return found.view(*x.shape[:-1], -1)


def _product(x: Tensor, weight: Tensor, scales: Tensor, minima: Tensor | None, bias: Tensor | None) -> Tensor:
    """[M, N] from ``x`` [M, K]. For few rows K is split among programs, too; their sums are added in a fixed order."""
    x = x.contiguous()
    (count, inner), outer = x.shape, len(weight)
    group = 0 if minima is None else inner // scales.shape[1]
    rows = max(16, min(power_of_two(count), 64))
    columns = 32 if count <= FEW else 64
    depth = 32 if x.dtype == torch.float32 else 128 if not group else min(128, group & -group)
    tiles = -(-count // rows) * -(-outer // columns)
    splits = max(1, min(PROGRAMS // tiles, inner // (4 * depth), 16)) if count <= FEW else 1
    out = torch.empty((count, outer), dtype=x.dtype, device=x.device)
    sums = torch.empty((splits, count, outer), dtype=torch.float32, device=x.device) if splits > 1 else out
    low = scales if minima is None else minima
    added = scales if bias is None else bias
    _multiply[(-(-outer // columns), -(-count // rows), splits)](
        x, weight, scales.contiguous(), low.contiguous(), added, sums, count, outer, inner, splits,
        group, bias is not None, splits > 1, rows, columns, depth, INTERPRETED, num_warps=4, num_stages=3,
    )  # fmt: skip
    if splits > 1:
        facts = (count * outer, outer, splits, not group, bias is not None, 1024)
        _add[(-(-count * outer // 1024),)](sums, scales, added, out, *facts)
    return out


@Kernel
def _multiply(  # type: ignore[no-untyped-def]
    x, weight, scales, minima, bias, out, count, outer, inner, splits, GROUP: tl.constexpr,  # noqa: N803
    BIAS: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,  # noqa: N803
    DEPTH: tl.constexpr, WIDE: tl.constexpr,  # noqa: N803
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(2)
    share = tl.cdiv(tl.cdiv(inner, splits), DEPTH) * DEPTH
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    real = column < outer
    wide = column.to(tl.int64)
    for start in range(split * share, tl.minimum(split * share + share, inner), DEPTH):
        place = start + tl.arange(0, DEPTH)
        there = (row < count)[:, None] & (place < inner)[None, :]
        values = tl.load(x + row[:, None].to(tl.int64) * inner + place[None, :], there, 0.0)
        if GROUP:
            byte = start // 2 + tl.arange(0, DEPTH // 2)
            both = tl.load(weight + wide[:, None] * (inner // 2) + byte[None, :], real[:, None], 0)
            at = wide * (inner // GROUP) + start // GROUP
            scale = tl.load(scales + at, real, 0.0).to(tl.float32)
            least = tl.load(minima + at, real, 0.0).to(tl.float32)
            numbers = tl.interleave(both & 15, both >> 4).to(tl.float32)
            tile = (numbers * scale[:, None] + least[:, None]).to(values.dtype)
        else:
            inside = real[:, None] & (place < inner)[None, :]
            tile = tl.load(weight + wide[:, None] * inner + place[None, :], inside, 0).to(tl.float32).to(values.dtype)
        total += dot(values, tl.trans(tile), WIDE)
    to = out + (split.to(tl.int64) * count + row[:, None]) * outer + column[None, :]
    if not PARTS:
        if not GROUP:
            total *= tl.load(scales + column, real, 0.0).to(tl.float32)[None, :]
        if BIAS:
            total += tl.load(bias + column, real, 0.0).to(tl.float32)[None, :]
    tl.store(to, total.to(out.dtype.element_ty), (row < count)[:, None] & real[None, :])


@Kernel
def _add(  # type: ignore[no-untyped-def]
    sums, scales, bias, out, size, outer, splits, SCALED: tl.constexpr, BIAS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = place < size
    total = tl.zeros([BLOCK], tl.float32)
    for split in range(splits):
        total += tl.load(sums + split * size + place, there, 0.0)
    if SCALED:
        total *= tl.load(scales + place % outer, there, 0.0).to(tl.float32)
    if BIAS:
        total += tl.load(bias + place % outer, there, 0.0).to(tl.float32)
    tl.store(out + place, total.to(out.dtype.element_ty), there)


def int8_reference(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None = None) -> Tensor:
    """``int8_linear`` in plain torch."""
    out = functional.linear(x, weight.to(x.dtype)) * scales.to(x.dtype)
    return out if bias is None else out + bias


def int4_reference(x: Tensor, weight: Tensor, scales: Tensor, minima: Tensor, bias: Tensor | None = None) -> Tensor:
    """``int4_linear`` in plain torch."""
    return functional.linear(x, unpack(weight, scales, minima).to(x.dtype), bias)


def pack(numbers: Tensor) -> Tensor:
    """``numbers`` [N, K] of 0 to 15, two a byte: uint8 [N, K / 2]."""
    pairs = numbers.to(torch.uint8).view(*numbers.shape[:-1], -1, 2)
    return pairs[..., 0] | pairs[..., 1] << 4


def unpack(weight: Tensor, scales: Tensor, minima: Tensor) -> Tensor:
    """The weights [N, K] in fp32 that ``int4_linear`` describes."""
    numbers = torch.stack((weight & 15, weight >> 4), -1).flatten(-2).float()
    groups = numbers.view(*scales.shape, -1)
    return (groups * scales.float().unsqueeze(-1) + minima.float().unsqueeze(-1)).flatten(-2)
