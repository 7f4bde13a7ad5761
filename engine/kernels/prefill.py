"""Attention of many new positions a sequence over the paged cache: prompts, their chunks behind a prefix, drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.kernels import flash
from engine.kernels.launch import Kernel, power_of_two, runs
from engine.kernels.paged import Past, look, reference

if TYPE_CHECKING:
    import triton.language as tl


def paged_prefill(q: Tensor, starts: Tensor, past: Past) -> Tensor:
    """Causal attention of ``q`` [T, Hq, D], whose keys and values are in the cache already; returns [T, Hq, D].

    Sequence s has the rows from ``starts[s]`` to ``starts[s + 1]`` ([S + 1]), its newest positions; Hq is a multiple of
    the cache's Hk. Rows of a sequence of length 0 become 0.
    """
    return flash.fastest_attention("prefill", tiled_prefill, q, starts, past) if runs(q) else reference(q, starts, past)


def tiled_prefill(q: Tensor, starts: Tensor | None, past: Past) -> Tensor:
    """``paged_prefill`` by the kernel of this file.

    A tile holds some positions of one sequence, each with all query heads that share keys. Programs find their sequence
    themselves, so the host need not know how many rows each has.
    """
    count, heads, size = q.shape
    kv_heads, sequences = past.keys.shape[2], len(past.lengths)
    group, block = heads // kv_heads, power_of_two(size)
    row_bytes = block * q.element_size()
    wide = row_bytes > 256
    rows = max(32 if wide else 64 if count < 4096 else 128, power_of_two(group))
    positions = rows // group
    tile = 32 if wide else 64
    out = torch.empty((count, heads, size), dtype=q.dtype, device=q.device)
    _tile[(count // positions + sequences, kv_heads)](
        *past.arguments(q), starts, out, sequences, positions, rows, tile, block,
        num_warps=8 if rows == 128 else 4, num_stages=1 if row_bytes > 512 else 2,
    )  # fmt: skip
    return out


@Kernel
def _tile(  # type: ignore[no-untyped-def]
    q, k_cache, v_cache, k_scale, v_scale, tables, lengths, q_row, q_head, slot_stride, head_stride, table_row,
    kv_heads, group, size, scale, window: tl.constexpr, softcap: tl.constexpr, BLOCK_SIZE: tl.constexpr,  # noqa: N803
    QUANTISED: tl.constexpr, WIDE: tl.constexpr, starts, out, sequences, positions, ROWS: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    # Sequence s has at most count / positions + 1 tiles; its first is starts[s] / positions + s: the last that is not
    # behind this one is the sequence to work on.
    mine, kv_head = tl.program_id(0), tl.program_id(1)
    low, high = 0 * mine, 0 * mine + sequences
    while high - low > 1:
        middle = (low + high) // 2
        before = tl.load(starts + middle).to(tl.int32) // positions + middle <= mine
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    sequence = low
    start, end = tl.load(starts + sequence).to(tl.int32), tl.load(starts + sequence + 1).to(tl.int32)
    length = tl.load(lengths + sequence).to(tl.int32)
    skipped = (mine - start // positions - sequence) * positions
    row = tl.arange(0, ROWS)
    new = skipped + row // group
    column = tl.arange(0, BLOCK)
    head = kv_head * group + row % group
    there = (row < positions * group) & (new < end - start)
    cells = there[:, None] & (column < size)[None, :]
    at = length - (end - start) + new
    place = (start + new).to(tl.int64)
    query = tl.load(q + place[:, None] * q_row + head[:, None] * q_head + column[None, :], cells, 0.0)
    earliest = length - (end - start) + skipped
    oldest = tl.maximum(earliest - window + 1, 0) // TILE * TILE if window else 0
    last = tl.minimum(earliest + positions, length)
    last = tl.where(skipped < end - start, last, 0)
    _, total, found = look(
        query, at, oldest, last, tables + sequence.to(tl.int64) * table_row, kv_head, k_cache, v_cache, k_scale,
        v_scale, slot_stride, head_stride, kv_heads, size, scale, window, softcap, BLOCK_SIZE, QUANTISED, WIDE, ROWS,
        TILE, BLOCK,
    )  # fmt: skip
    found = found / tl.where(total > 0.0, total, 1.0)[:, None]
    to = out + (place[:, None] * kv_heads * group + head[:, None]) * size + column[None, :]
    tl.store(to, found.to(out.dtype.element_ty), cells)
