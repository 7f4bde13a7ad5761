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
    if batch.longest == 1:
        count, heads, size = q.shape
        # The heads that share keys go as if they were positions: one product for them all.
        grouped = q.view(count, 1, cache.keys.shape[2], -1, size).unbind()
        found = [_last(*each, cache, scale, window) for each in zip(grouped, batch.spans, strict=True)]
        return torch.cat(found).reshape(count, heads, size)
    return torch.cat([_over(q[s.first : s.last], cache, batch, s, scale, window) for s in batch.spans])


def _last(q: Tensor, span: Span, cache: LayerCache, scale: float, window: int | None) -> Tensor:
    """One position, the last of its sequence: ``q`` and what it finds, [1, kv_heads, heads / kv_heads, head_size]."""
    first = 0 if window is None else max(span.length - window, 0)
    return scaled_dot_product_attention(q, *cache.read(span.slots, first, q.dtype), scale=scale)


def _paged(q: Tensor, cache: LayerCache, batch: Batch, scale: float, window: int | None) -> Tensor:
    from engine.kernels.decode import paged_decode
    from engine.kernels.paged import Past
    from engine.kernels.prefill import paged_prefill

    scales = (cache.key_scales, cache.value_scales)
    past = Past(cache.keys, cache.values, batch.tables, batch.lengths, scale, window, None, *scales)
    return paged_decode(q, past) if batch.longest == 1 else paged_prefill(q, batch.starts, past)


def _over(q: Tensor, cache: LayerCache, batch: Batch, span: Span, scale: float, window: int | None) -> Tensor:
    """One sequence: ``q`` [n, heads, head_size] over the keys and values that any of its rows sees."""
    count = len(q)
    seen = span.length if window is None else min(span.length, count + window - 1)
    keys, values = cache.read(span.slots, span.length - seen, q.dtype)
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
