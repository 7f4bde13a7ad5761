"""Attention of one new position a sequence over the paged cache."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.kernels import flash, paged
from engine.kernels.launch import Kernel, power_of_two, runs
from engine.kernels.paged import Past, look

if TYPE_CHECKING:
    import triton.language as tl

SHARE = 256
"""Positions that are worth a program of their own."""
SPLITS = 64
"""Programs at most among which a sequence's positions are split."""


def paged_decode(q: Tensor, past: Past) -> Tensor:
    """Attention of ``q`` [S, Hq, D], the last position of each sequence; returns [S, Hq, D], 0 for padding.

    Hq is a multiple of the cache's Hk.
    """
    return flash.fastest_attention("decode", split_decode, q, None, past) if runs(q) else reference(q, past)


def split_decode(q: Tensor, _: Tensor | None, past: Past) -> Tensor:
    """``paged_decode`` by the kernels of this file.

    A program reads a share of one sequence's keys and values for all query heads that share them. The number of shares
    follows from shapes alone, so that it is the same in a CUDA graph.
    """
    sequences, heads, size = q.shape
    kv_heads, block_size = past.keys.shape[2], past.keys.shape[1]
    longest = past.tables.shape[1] * block_size
    longest = longest if past.window is None else min(longest, past.window)
    wanted = -(-2 * _processors(q.device) // (sequences * kv_heads))
    splits = max(1, min(wanted, -(-longest // SHARE), SPLITS))
    parts = torch.empty((sequences, heads, splits, size), dtype=torch.float32, device=q.device)
    sums = torch.empty((sequences, heads, splits), dtype=torch.float32, device=q.device)
    out = torch.empty((sequences, heads, size), dtype=q.dtype, device=q.device)
    group, block = heads // kv_heads, power_of_two(size)
    tile = 64 if block * past.keys.element_size() <= 256 else 32
    _share[(sequences, kv_heads, splits)](
        *past.arguments(q), parts, sums, splits, max(16, power_of_two(group)), tile, block,
        num_stages=1 if block * q.element_size() > 512 else 2,
    )  # fmt: skip
    _join[(sequences * heads,)](parts, sums, out, size, splits, power_of_two(splits), block)
    return out


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@Kernel
def _share(  # type: ignore[no-untyped-def]
    q, k_cache, v_cache, k_scale, v_scale, tables, lengths, q_row, q_head, slot_stride, head_stride, table_row,
    kv_heads, group, size, scale, window: tl.constexpr, softcap: tl.constexpr, BLOCK_SIZE: tl.constexpr,  # noqa: N803
    QUANTISED: tl.constexpr, WIDE: tl.constexpr, parts, sums, splits, ROWS: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    sequence, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + sequence).to(tl.int32)
    oldest = tl.maximum(length - window, 0) if window else 0
    share = tl.cdiv(tl.cdiv(length - oldest, splits), TILE) * TILE
    first = oldest + split * share
    last = tl.minimum(first + share, length)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    head = kv_head * group + row
    mine = (row < group)[:, None] & (column < size)[None, :]
    query = tl.load(q + sequence * q_row + head[:, None] * q_head + column[None, :], mine, 0.0)
    # All of the share is in the window, and none of it is behind the new position.
    most, total, found = look(
        query, tl.full([ROWS], -1, tl.int32) + last, first, last, tables + sequence * table_row, kv_head, k_cache,
        v_cache, k_scale, v_scale, slot_stride, head_stride, kv_heads, size, scale, 0, softcap, BLOCK_SIZE, QUANTISED,
        WIDE, ROWS, TILE, BLOCK,
    )  # fmt: skip
    some = tl.where(total > 0.0, total, 1.0)
    at = (sequence * kv_heads * group + head) * splits + split
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


def reference(q: Tensor, past: Past) -> Tensor:
    """``paged_decode`` in plain torch, in fp32."""
    return paged.reference(q, torch.arange(len(q) + 1), past)
