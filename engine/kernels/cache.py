"""Writing keys and values into the paged cache, quantised on the way when the cache is."""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The largest value that a quantised cache's dtype holds."""


def write_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Put ``k`` and ``v`` [T, Hk, D] at ``slots`` [T] of the caches [blocks, block_size, Hk, D].

    A slot is block * block_size + offset; a negative one is padding, and written nowhere. int8 and fp8 caches come with
    scales [blocks, block_size, Hk] fp32: a value is its stored number times its scale.
    """
    reference(k, v, k_cache, v_cache, slots, k_scale, v_scale)


def reference(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """``write_kv`` in plain torch."""
    if bool((slots < 0).any()):
        real = slots >= 0
        k, v, slots = k[real], v[real], slots[real]
    slots = slots.long()
    for new, cache, scales in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        if scales is None:
            cache.flatten(0, 1)[slots] = new.to(cache.dtype)
        else:
            cache.flatten(0, 1)[slots], scales.flatten(0, 1)[slots] = quantise(new, cache.dtype)


def quantise(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """``x`` [..., D] in int8 or fp8 with one scale for its last dimension: (numbers [..., D], scales [...] fp32)."""
    largest = LARGEST[dtype]
    scales = x.float().abs().amax(-1).clamp_min(1e-12) / largest
    numbers = (x.float() / scales.unsqueeze(-1)).clamp(-largest, largest)
    return (numbers.round() if dtype == torch.int8 else numbers).to(dtype), scales
