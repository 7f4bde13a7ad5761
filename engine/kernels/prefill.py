"""Attention of many new positions a sequence over the paged cache: prompts, their chunks behind a prefix, drafts."""

from __future__ import annotations

import torch
from torch import Tensor


def paged_prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    tables: Tensor,
    starts: Tensor,
    lengths: Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """Causal attention of ``q`` [T, Hq, D], whose keys and values are in the cache already; returns [T, Hq, D].

    Sequence s has the rows from ``starts[s]`` to ``starts[s + 1]`` ([S + 1]), the newest of its ``lengths[s]`` ([S])
    positions, in the blocks ``tables[s]`` ([S, B]) of the caches [blocks, block_size, Hk, D] (Hq is a multiple of Hk).
    A position sees the last ``window`` positions, itself included. ``softcap`` c makes a score c * tanh(score / c).
    ``k_scale`` and ``v_scale`` are those of ``write_kv``. Rows of a sequence of length 0 become 0.
    """
    return reference(q, k_cache, v_cache, tables, starts, lengths, scale, window, softcap, k_scale, v_scale)


def reference(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    tables: Tensor,
    starts: Tensor,
    lengths: Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
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
