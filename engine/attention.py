"""Attention over the cache: the kernels on a GPU, torch's over exact lengths on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine.batch import Batch
from engine.kv_cache import LayerCache

FEW = 8
"""Positions of a sequence, as decode and drafts have them, up to which it is read together with others."""


def attend(q: Tensor, cache: LayerCache, batch: Batch, scale: float, window: int | None) -> Tensor:
    """What the queries ``q`` [T, heads, head_size] find in their own sequences' past; [T, heads, head_size].

    With a ``window``, a position sees itself and window - 1 before it.
    """
    if q.is_cuda:
        return _paged(q, cache, batch, scale, window)
    readings = batch.shared.get(window)
    if not isinstance(readings, list):
        sizes = cache.keys.shape[1], q.shape[1] // cache.keys.shape[2]
        readings = batch.shared[window] = list(_readings(batch, window, *sizes, q.dtype))
    if len(readings) == 1:
        return _find(q, cache, readings[0], scale)
    found = q.new_empty(q.shape)
    for reading in readings:
        found[reading.rows] = _find(q[reading.rows], cache, reading, scale)
    return found


def _paged(q: Tensor, cache: LayerCache, batch: Batch, scale: float, window: int | None) -> Tensor:
    from engine.kernels.decode import paged_decode
    from engine.kernels.paged import Past
    from engine.kernels.prefill import paged_prefill

    scales = (cache.key_scales, cache.value_scales)
    past = Past(cache.keys, cache.values, batch.tables, batch.lengths, scale, window, None, *scales)
    return paged_decode(q, past) if batch.longest == 1 else paged_prefill(q, batch.starts, past)


@dataclass(frozen=True, slots=True)
class _Reading:
    """Sequences that are read together: as many ``rows`` of the batch each, and as many ``slots`` [sequences * L].

    ``mask`` is what is added to their scores: 0 where a key is seen. None where all are, up to the position itself.
    """

    rows: slice | Tensor
    sequences: int
    slots: slice | Tensor
    mask: Tensor | None


def _readings(batch: Batch, window: int | None, block_size: int, share: int, dtype: torch.dtype) -> Iterator[_Reading]:
    """How a batch is read. ``share`` heads have the same keys.

    Sequences of about the same length are read together, since calls cost more than what is read of the padding.
    """

    def seen(index: int) -> int:
        count, length = batch.spans[index].last - batch.spans[index].first, batch.spans[index].length
        return length if window is None else min(length, count + window - 1)

    groups: list[list[int]] = []
    counts = [span.last - span.first for span in batch.spans]
    for index in sorted(range(len(counts)), key=lambda index: (counts[index], seen(index))):
        first = groups[-1][0] if groups else index
        together = groups and counts[index] == counts[first] <= FEW and seen(index) <= 1.5 * seen(first) + 64
        groups[-1].append(index) if together else groups.append([index])
    for group in groups:
        yield _reading(batch, sorted(group), max(map(seen, group)), window, block_size, share, dtype)


def _reading(
    batch: Batch, group: list[int], width: int, window: int | None, block_size: int, share: int, dtype: torch.dtype
) -> _Reading:
    spans = [batch.spans[index] for index in group]
    first, last, count = spans[0].first, spans[-1].last, spans[0].last - spans[0].first
    rows: slice | Tensor = slice(first, last)
    if last - first != count * len(spans):
        rows = torch.cat([torch.arange(span.first, span.last) for span in spans])
    hidden = _hidden(count, width, window).repeat_interleave(share if count <= FEW else 1, 0)
    start, length = spans[0].start, spans[0].length
    if len(spans) == 1 and start is not None:
        slots: slice | Tensor = slice(start + length - width, start + length)
    else:
        # All end at the same column. What is before a shorter one's first is hidden, and of its own: keys of others
        # need not be finite.
        lengths = torch.tensor([span.length for span in spans])[:, None]
        positions = torch.arange(width) + (lengths - width)
        hidden = hidden | (positions < 0)[:, None, None]
        positions.clamp_(min=0)
        blocks = batch.tables[group].gather(1, positions // block_size)
        slots = (blocks * block_size + positions % block_size).flatten()
    causal = count > FEW and count == width and (window is None or window >= width)
    mask = None
    if not causal and bool(hidden.any()):
        mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
    return _Reading(rows, len(spans), slots, mask)


def _hidden(count: int, seen: int, window: int | None) -> Tensor:
    """Which keys of the last ``seen`` positions each of the last ``count`` does not see, [count, seen]."""
    hidden = torch.ones((count, seen), dtype=torch.bool).triu(seen - count + 1)
    if window is not None:
        hidden |= torch.ones((count, seen), dtype=torch.bool).tril(seen - count - window)
    return hidden


def _find(q: Tensor, cache: LayerCache, reading: _Reading, scale: float) -> Tensor:
    """What the queries of a reading find, [T, heads, head_size] as ``q``."""
    keys, values = cache.read(reading.slots, reading.sequences, q.dtype)
    sequences, kv_heads = keys.shape[:2]
    count = len(q) // sequences
    if count > FEW:
        found = scaled_dot_product_attention(
            q.transpose(0, 1)[None], keys, values, reading.mask, is_causal=reading.mask is None, scale=scale,
            enable_gqa=True,
        )  # fmt: skip
        return found[0].transpose(0, 1)
    # The heads that share keys go as if they were positions: one product for them all.
    grouped = q.view(sequences, count, kv_heads, -1, q.shape[2]).transpose(1, 2).flatten(2, 3)
    found = scaled_dot_product_attention(grouped, keys, values, reading.mask, scale=scale)
    return found.view(sequences, kv_heads, count, -1, q.shape[2]).transpose(1, 2).reshape(q.shape)
