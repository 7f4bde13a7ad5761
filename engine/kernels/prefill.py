"""Attention of many new positions a sequence over the paged cache: prompts, their chunks behind a prefix, drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.kernels import flash
from engine.kernels.launch import INTERPRETED, Kernel, dot, power_of_two, runs

if TYPE_CHECKING:
    import triton.language as tl


def paged_prefill(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, tables: Tensor, starts: Tensor, lengths: Tensor, scale: float,
    window: int | None = None, softcap: float | None = None, k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Causal attention of ``q`` [T, Hq, D], whose keys and values are in the cache already; returns [T, Hq, D].

    Sequence s has the rows from ``starts[s]`` to ``starts[s + 1]`` ([S + 1]), the newest of its ``lengths[s]`` ([S])
    positions, in the blocks ``tables[s]`` ([S, B]) of the caches [blocks, block_size, Hk, D] (Hq is a multiple of Hk).
    A position sees the last ``window`` positions, itself included. ``softcap`` c makes a score c * tanh(score / c).
    ``k_scale`` and ``v_scale`` are those of ``write_kv``. Rows of a sequence of length 0 become 0.
    """
    if not runs(q):
        return reference(q, k_cache, v_cache, tables, starts, lengths, scale, window, softcap, k_scale, v_scale)
    if k_scale is None:
        return flash.prefill(tiled_prefill, q, k_cache, v_cache, tables, starts, lengths, scale, window, softcap)
    return tiled_prefill(q, k_cache, v_cache, tables, starts, lengths, scale, window, softcap, k_scale, v_scale)


def tiled_prefill(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, tables: Tensor, starts: Tensor, lengths: Tensor, scale: float,
    window: int | None = None, softcap: float | None = None, k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """``paged_prefill`` by the kernel of this file.

    A tile holds some positions of one sequence, each with all query heads that share keys. Programs find their sequence
    themselves, so the host need not know how many rows each has.
    """
    count, heads, size = q.shape
    kv_heads, block_size = k_cache.shape[2], k_cache.shape[1]
    group, block = heads // kv_heads, power_of_two(size)
    row_bytes = block * q.element_size()
    wide = row_bytes > 256
    rows = max(32 if wide else 64 if count < 4096 else 128, power_of_two(group))
    positions = rows // group
    tile = 32 if wide else 64
    out = torch.empty((count, heads, size), dtype=q.dtype, device=q.device)
    scales = (q, q) if k_scale is None or v_scale is None else (k_scale, v_scale)
    strides = (q.stride(0), q.stride(1), k_cache.stride(1), k_cache.stride(2), tables.stride(0))
    facts = (kv_heads, group, size, len(lengths), positions, scale, window or 0, softcap or 0.0)
    _tile[(count // positions + len(lengths), kv_heads)](
        q, k_cache, v_cache, *scales, tables, starts, lengths, out, *strides, *facts, block_size,
        k_scale is not None, rows, tile, block, INTERPRETED, num_warps=8 if rows == 128 else 4,
        num_stages=1 if row_bytes > 512 else 2,
    )  # fmt: skip
    return out


@Kernel
def _tile(  # type: ignore[no-untyped-def]
    q, k_cache, v_cache, k_scale, v_scale, tables, starts, lengths, out, q_row, q_head, slot_stride, head_stride,
    table_row, kv_heads, group, size, sequences, positions, scale, window: tl.constexpr, softcap: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, QUANTISED: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr, WIDE: tl.constexpr,  # noqa: N803
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
    most = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    found = tl.zeros([ROWS, BLOCK], tl.float32)
    earliest = length - (end - start) + skipped
    oldest = tl.maximum(earliest - window + 1, 0) // TILE * TILE if window else 0
    last = tl.minimum(earliest + positions, length)
    last = tl.where(skipped < end - start, last, 0)
    for tile in range(oldest, last, TILE):
        position = tile + tl.arange(0, TILE)
        real = position < length
        block = tl.load(tables + sequence.to(tl.int64) * table_row + position // BLOCK_SIZE, real, 0).to(tl.int64)
        slot = block * BLOCK_SIZE + position % BLOCK_SIZE
        cell = slot[:, None] * slot_stride + kv_head * head_stride + column[None, :]
        inside = real[:, None] & (column < size)[None, :]
        keys = tl.load(k_cache + cell, inside, 0.0).to(tl.float32).to(query.dtype)
        scores = dot(query, tl.trans(keys), WIDE) * scale
        if QUANTISED:
            scores *= tl.load(k_scale + slot * kv_heads + kv_head, real, 0.0)[None, :]
        if softcap > 0.0:
            scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)
        seen = position[None, :] <= at[:, None]
        if window:
            seen = seen & (position[None, :] > at[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        greater = tl.maximum(most, tl.max(scores, 1))
        base = tl.where(greater == float("-inf"), 0.0, greater)  # a row that sees nothing of this tile
        weights = tl.exp(scores - base[:, None])
        shrink = tl.exp(most - base)
        total = total * shrink + tl.sum(weights, 1)
        if QUANTISED:
            weights *= tl.load(v_scale + slot * kv_heads + kv_head, real, 0.0)[None, :]
        values = tl.load(v_cache + cell, inside, 0.0).to(tl.float32).to(query.dtype)
        found = found * shrink[:, None] + dot(weights.to(query.dtype), values, WIDE)
        most = greater
    found = found / tl.where(total > 0.0, total, 1.0)[:, None]
    to = out + (place[:, None] * kv_heads * group + head[:, None]) * size + column[None, :]
    tl.store(to, found.to(out.dtype.element_ty), cells)


def reference(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, tables: Tensor, starts: Tensor, lengths: Tensor, scale: float,
    window: int | None = None, softcap: float | None = None, k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """``paged_prefill`` in plain torch, in fp32."""
    out = torch.zeros_like(q)
    bounds = starts.tolist()
    for index, length in enumerate(lengths.tolist()):
        first, last = bounds[index], bounds[index + 1]
        if not length or first == last:
            continue
        blocks = tables[index, : -(-length // k_cache.shape[1])].long()
        keys, values = (
            _positions(cache, scales, blocks, length) for cache, scales in ((k_cache, k_scale), (v_cache, v_scale))
        )
        mine = (
            q[first:last].float().reshape(last - first, keys.shape[0], -1, q.shape[-1]).permute(1, 2, 0, 3)
        )  # [Hk, G, n, D]
        scores = mine @ keys.unsqueeze(1).transpose(-1, -2) * scale  # [Hk, G, n, length]
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        at = torch.arange(length - (last - first), length, device=q.device).unsqueeze(1)
        behind = at - torch.arange(length, device=q.device)
        seen = behind >= 0 if window is None else (behind >= 0) & (behind < window)
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        out[first:last] = (weights @ values.unsqueeze(1)).permute(2, 0, 1, 3).flatten(1, 2)
    return out


def _positions(cache: Tensor, scales: Tensor | None, blocks: Tensor, length: int) -> Tensor:
    """A sequence's keys or values in order, in fp32: [Hk, length, D]."""
    found = cache[blocks].flatten(0, 1)[:length].float()
    if scales is not None:
        found = found * scales[blocks].flatten(0, 1)[:length].unsqueeze(-1)
    return found.transpose(0, 1)
