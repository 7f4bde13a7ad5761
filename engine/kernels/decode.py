"""Attention of one new position a sequence over the paged cache."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.kernels import flash, prefill
from engine.kernels.launch import INTERPRETED, Kernel, dot, power_of_two, runs

if TYPE_CHECKING:
    import triton.language as tl

SHARE = 256
"""Positions that are worth a program of their own."""
SPLITS = 64
"""Programs at most among which a sequence's positions are split."""


def paged_decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, tables: Tensor, lengths: Tensor, scale: float,
    window: int | None = None, softcap: float | None = None, k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention of ``q`` [S, Hq, D], the last of ``lengths`` [S] positions of each sequence; returns [S, Hq, D].

    The rest is as for ``paged_prefill``. A sequence of length 0 is padding; its rows become 0.
    """
    if not runs(q):
        return reference(q, k_cache, v_cache, tables, lengths, scale, window, softcap, k_scale, v_scale)
    if k_scale is None:
        return flash.decode(split_decode, q, k_cache, v_cache, tables, lengths, scale, window, softcap)
    return split_decode(q, k_cache, v_cache, tables, lengths, scale, window, softcap, k_scale, v_scale)


def split_decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, tables: Tensor, lengths: Tensor, scale: float,
    window: int | None = None, softcap: float | None = None, k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """``paged_decode`` by the kernels of this file.

    A program reads a share of one sequence's keys and values for all query heads that share them. The number of shares
    follows from shapes alone, so that it is the same in a CUDA graph.
    """
    sequences, heads, size = q.shape
    kv_heads, block_size = k_cache.shape[2], k_cache.shape[1]
    longest = tables.shape[1] * block_size
    longest = longest if window is None else min(longest, window)
    wanted = -(-2 * _processors(q.device) // (sequences * kv_heads))
    splits = max(1, min(wanted, -(-longest // SHARE), SPLITS))
    parts = torch.empty((sequences, heads, splits, size), dtype=torch.float32, device=q.device)
    sums = torch.empty((sequences, heads, splits), dtype=torch.float32, device=q.device)
    out = torch.empty((sequences, heads, size), dtype=q.dtype, device=q.device)
    group, block = heads // kv_heads, power_of_two(size)
    tile = 64 if block * k_cache.element_size() <= 256 else 32
    scales = (q, q) if k_scale is None or v_scale is None else (k_scale, v_scale)
    strides = (q.stride(0), q.stride(1), k_cache.stride(1), k_cache.stride(2), tables.stride(0))
    facts = (kv_heads, group, size, splits, scale, window or 0, softcap or 0.0, block_size, k_scale is not None)
    _share[(sequences, kv_heads, splits)](
        q, k_cache, v_cache, *scales, tables, lengths, parts, sums, *strides, *facts,
        max(16, power_of_two(group)), tile, block, INTERPRETED, num_stages=1 if block * q.element_size() > 512 else 2,
    )  # fmt: skip
    _join[(sequences * heads,)](parts, sums, out, size, splits, power_of_two(splits), block)
    return out


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@Kernel
def _share(  # type: ignore[no-untyped-def]
    q, k_cache, v_cache, k_scale, v_scale, tables, lengths, parts, sums, q_row, q_head, slot_stride, head_stride,
    table_row, kv_heads, group, size, splits, scale, window: tl.constexpr, softcap: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, QUANTISED: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr, WIDE: tl.constexpr,  # noqa: N803
):  # fmt: skip
    sequence, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + sequence)
    oldest = tl.maximum(length - window, 0) if window else 0
    share = tl.cdiv(tl.cdiv(length - oldest, splits), TILE) * TILE
    first = oldest + split * share
    last = tl.minimum(first + share, length)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    head = kv_head * group + row
    mine = (row < group)[:, None] & (column < size)[None, :]
    query = tl.load(q + sequence.to(tl.int64) * q_row + head[:, None] * q_head + column[None, :], mine, 0.0)
    most = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    found = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(first, last, TILE):
        position = start + tl.arange(0, TILE)
        seen = position < last
        block = tl.load(tables + sequence.to(tl.int64) * table_row + position // BLOCK_SIZE, seen, 0).to(tl.int64)
        slot = block * BLOCK_SIZE + position % BLOCK_SIZE
        place = slot[:, None] * slot_stride + kv_head * head_stride + column[None, :]
        there = seen[:, None] & (column < size)[None, :]
        keys = tl.load(k_cache + place, there, 0.0).to(tl.float32).to(query.dtype)
        scores = dot(query, tl.trans(keys), WIDE) * scale
        if QUANTISED:
            scores *= tl.load(k_scale + slot * kv_heads + kv_head, seen, 0.0)[None, :]
        if softcap > 0.0:
            scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        greater = tl.maximum(most, tl.max(scores, 1))
        weights = tl.exp(scores - greater[:, None])
        shrink = tl.exp(most - greater)
        total = total * shrink + tl.sum(weights, 1)
        if QUANTISED:
            weights *= tl.load(v_scale + slot * kv_heads + kv_head, seen, 0.0)[None, :]
        values = tl.load(v_cache + place, there, 0.0).to(tl.float32).to(query.dtype)
        found = found * shrink[:, None] + dot(weights.to(query.dtype), values, WIDE)
        most = greater
    some = tl.where(total > 0.0, total, 1.0)
    at = (sequence.to(tl.int64) * kv_heads * group + head) * splits + split
    tl.store(sums + at, tl.where(total > 0.0, most + tl.log(some), float("-inf")), row < group)
    tl.store(parts + at[:, None] * size + column[None, :], found / some[:, None], mine)


@Kernel
def _join(  # type: ignore[no-untyped-def]
    parts, sums, out, size, splits, SPLITS: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    column = tl.arange(0, BLOCK)
    each = tl.load(sums + row * splits + split, split < splits, float("-inf"))
    most = tl.max(each, 0)
    weights = tl.exp(each - tl.where(most == float("-inf"), 0.0, most))  # nothing seen by any: 0, not of NaN
    there = (split < splits)[:, None] & (column < size)[None, :]
    values = tl.load(parts + (row * splits + split)[:, None] * size + column[None, :], there, 0.0)
    mean = tl.sum(values * weights[:, None], 0) / tl.maximum(tl.sum(weights, 0), 1e-30)
    tl.store(out + row * size + column, mean.to(out.dtype.element_ty), column < size)


def reference(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, tables: Tensor, lengths: Tensor, scale: float,
    window: int | None = None, softcap: float | None = None, k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """``paged_decode`` in plain torch, in fp32."""
    starts = torch.arange(len(q) + 1)
    return prefill.reference(q, k_cache, v_cache, tables, starts, lengths, scale, window, softcap, k_scale, v_scale)
