"""Attention over the paged cache: what it looks at, the pass that its kernels share, and plain torch's way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from engine.kernels.launch import INTERPRETED, Kernel, dot
from engine.packed import restore

if TYPE_CHECKING:
    import triton.language as tl


@dataclass(frozen=True, slots=True)
class Past:
    """The positions of S sequences that queries look at.

    Sequence s has ``lengths[s]`` ([S]) of them, in the blocks ``tables[s]`` ([S, B]) of the caches ``keys`` and
    ``values`` [blocks, block_size, Hk, D]; one of length 0 is padding. A position sees the last ``window`` positions,
    itself included. ``softcap`` c makes a score c * tanh(score / c). The scales are those of ``write_kv``.
    """

    keys: Tensor
    values: Tensor
    tables: Tensor
    lengths: Tensor
    scale: float
    window: int | None = None
    softcap: float | None = None
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    def arguments(self, q: Tensor) -> tuple[Any, ...]:
        """What attention kernels take first, for queries ``q`` [T, Hq, D]."""
        quantised = self.key_scales is not None
        scales = (self.key_scales, self.value_scales) if quantised else (q, q)
        block_size, heads, size = self.keys.shape[1:]
        return (
            q, self.keys, self.values, *scales, self.tables, self.lengths, q.stride(0), q.stride(1),
            self.keys.stride(1), self.keys.stride(2), self.tables.stride(0), heads, q.shape[1] // heads, size,
            self.scale, self.window or 0, self.softcap or 0.0, block_size, quantised, INTERPRETED,
        )  # fmt: skip


@Kernel
def look(  # type: ignore[no-untyped-def]
    query, at, first, last, table, kv_head, k_cache, v_cache, k_scale, v_scale, slot_stride, head_stride, kv_heads,
    size, scale, window: tl.constexpr, softcap: tl.constexpr, BLOCK_SIZE: tl.constexpr,  # noqa: N803
    QUANTISED: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """What rows ``query`` [ROWS, BLOCK] at positions ``at`` see of the positions from ``first`` to ``last``.

    Each row's greatest score, its sum of exp(score - greatest), and the values weighted so (Dao et al. 2022).
    """
    column = tl.arange(0, BLOCK)
    most = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    found = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(first, last, TILE):
        position = start + tl.arange(0, TILE)
        real = position < last
        slot = tl.load(table + position // BLOCK_SIZE, real, 0).to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
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
        base = tl.where(greater == float("-inf"), 0.0, greater)  # a row that has seen nothing so far
        weights = tl.exp(scores - base[:, None])
        shrink = tl.exp(most - base)
        total = total * shrink + tl.sum(weights, 1)
        if QUANTISED:
            weights *= tl.load(v_scale + slot * kv_heads + kv_head, real, 0.0)[None, :]
        values = tl.load(v_cache + cell, inside, 0.0).to(tl.float32).to(query.dtype)
        found = found * shrink[:, None] + dot(weights.to(query.dtype), values, WIDE)
        most = greater
    return most, total, found


def reference(q: Tensor, starts: Tensor, past: Past) -> Tensor:
    """``paged_prefill`` in plain torch, in fp32."""
    out = torch.zeros_like(q)
    bounds = starts.tolist()
    for index, length in enumerate(past.lengths.tolist()):
        first, last = bounds[index], bounds[index + 1]
        count = last - first
        if not length or not count:
            continue
        blocks = past.tables[index, : -(-length // past.keys.shape[1])].long()
        keys = _positions(past.keys, past.key_scales, blocks, length)
        values = _positions(past.values, past.value_scales, blocks, length)
        mine = q[first:last].float().reshape(count, len(keys), -1, q.shape[-1]).permute(1, 2, 0, 3)  # [Hk, G, n, D]
        scores = mine @ keys.unsqueeze(1).transpose(-1, -2) * past.scale  # [Hk, G, n, length]
        if past.softcap is not None:
            scores = torch.tanh(scores / past.softcap) * past.softcap
        behind = torch.arange(length - count, length, device=q.device).unsqueeze(1) - torch.arange(
            length, device=q.device
        )
        seen = behind >= 0 if past.window is None else (behind >= 0) & (behind < past.window)
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        out[first:last] = (weights @ values.unsqueeze(1)).permute(2, 0, 1, 3).flatten(1, 2)
    return out


def _positions(cache: Tensor, scales: Tensor | None, blocks: Tensor, length: int) -> Tensor:
    """A sequence's keys or values in order, in fp32: [Hk, length, D]."""
    found = cache[blocks].flatten(0, 1)[:length].float()
    if scales is not None:
        found = restore(found, scales[blocks].flatten(0, 1)[:length], torch.float32)
    return found.transpose(0, 1)
