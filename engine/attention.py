"""Attention over the cache: the kernels on a GPU, torch's over exact lengths on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine.batch import Batch, Span
from engine.kv_cache import LayerCache


def attend(q: Tensor, cache: LayerCache, batch: Batch, scale: float, window: int | None) -> Tensor:
    """What the queries ``q`` [T, heads, head_size] find in their own sequences' past; [T, heads, head_size].

    With a ``window``, a position sees itself and window - 1 before it.
    """
    if q.is_cuda:
        return _paged(q, cache, batch, scale, window)
    if len(batch.spans) == 1:
        return _over(q, cache, batch, batch.spans[0], scale, window)
    return torch.cat([_over(q[s.first : s.last], cache, batch, s, scale, window) for s in batch.spans])


def _paged(q: Tensor, cache: LayerCache, batch: Batch, scale: float, window: int | None) -> Tensor:
    from engine.kernels.decode import paged_decode
    from engine.kernels.prefill import paged_prefill

    caches = (cache.keys, cache.values, batch.tables)
    scales = (cache.key_scales, cache.value_scales)
    if batch.longest == 1:
        return paged_decode(q, *caches, batch.lengths, scale, window, None, *scales)
    return paged_prefill(q, *caches, batch.starts, batch.lengths, scale, window, None, *scales)


def _over(q: Tensor, cache: LayerCache, batch: Batch, span: Span, scale: float, window: int | None) -> Tensor:
    """One sequence: ``q`` [n, heads, head_size] over the keys and values that any of its rows sees."""
    count, heads, size = q.shape
    seen = span.length if window is None else min(span.length, count + window - 1)
    slots = span.slots
    if seen < span.length:
        first = span.length - seen
        slots = slice(slots.start + first, slots.stop) if isinstance(slots, slice) else slots[first:]
    keys, values = cache.read(slots, q.dtype).permute(0, 2, 1, 3).unsqueeze(1)  # [1, kv_heads, seen, head_size] each
    if count == 1:
        # The heads that share keys go as if they were positions: one product for them all.
        grouped = q.view(1, keys.shape[1], -1, size)
        return scaled_dot_product_attention(grouped, keys, values, scale=scale).reshape(1, heads, size)
    mask = None
    if count != seen or (window is not None and window < seen):
        mask = batch.once((count, seen, window, q.dtype), lambda: _mask(count, seen, window, q.dtype))
    found = scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0), keys, values, mask, is_causal=mask is None, scale=scale, enable_gqa=True
    )
    return found[0].transpose(0, 1)


def _mask(count: int, seen: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """What is added to scores [count, seen] of the last ``count`` of ``seen`` positions: 0 where a key is seen."""
    hidden = torch.ones((count, seen), dtype=torch.bool).triu(seen - count + 1)
    if window is not None:
        hidden |= torch.ones((count, seen), dtype=torch.bool).tril(seen - count - window)
    return torch.zeros((count, seen), dtype=dtype).masked_fill_(hidden, float("-inf"))
