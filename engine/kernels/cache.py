"""Writing keys and values into the paged cache, quantised on the way when the cache is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.kernels.launch import Kernel, power_of_two, runs
from engine.packed import compress

if TYPE_CHECKING:
    import triton.language as tl

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The largest value that a quantised cache's dtype holds."""


def write_kv(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:  # fmt: skip
    """Put ``k`` and ``v`` [T, Hk, D] at ``slots`` [T] of the caches [blocks, block_size, Hk, D].

    A slot is block * block_size + offset; a negative one is padding, and written nowhere. int8 and fp8 caches come with
    scales [blocks, block_size, Hk] fp32: a value is its stored number times its scale.
    """
    if not runs(k):
        return reference(k, v, k_cache, v_cache, slots, k_scale, v_scale)
    count, heads, size = k.shape
    block = power_of_two(size)
    height = min(power_of_two(heads), max(2048 // block, 1))
    largest = 0.0 if k_scale is None else LARGEST[k_cache.dtype]
    strides = (k.stride(0), k.stride(1), v.stride(0), v.stride(1), k_cache.stride(1), k_cache.stride(2))
    facts = (heads, size, *strides, largest, k_scale is not None, k_cache.dtype == torch.int8, height, block)
    scales = (k_cache, v_cache) if k_scale is None else (k_scale, v_scale)
    _write[(count, -(-heads // height), 2)](k, v, k_cache, v_cache, *scales, slots, *facts)
    return None


@Kernel
def _write(  # type: ignore[no-untyped-def]
    k, v, k_cache, v_cache, k_scale, v_scale, slots, heads, size, k_row, k_head, v_row, v_head, slot_stride,
    head_stride, largest, QUANTISES: tl.constexpr, ROUNDS: tl.constexpr, ROWS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    slot = tl.load(slots + row).to(tl.int64)
    there = (head < heads) & (column < size) & (slot >= 0)
    to = slot * slot_stride + head * head_stride + column
    if tl.program_id(2) == 0:
        value = tl.load(k + row * k_row + head * k_head + column, there, 0.0)
        cache, scales = k_cache, k_scale
    else:
        value = tl.load(v + row * v_row + head * v_head + column, there, 0.0)
        cache, scales = v_cache, v_scale
    if QUANTISES:
        value = value.to(tl.float32)
        scale = tl.maximum(tl.max(tl.abs(value), 1)[:, None] / largest, 1e-30)
        tl.store(scales + slot * heads + head, scale, (head < heads) & (slot >= 0))
        value = tl.minimum(tl.maximum(value / scale, -largest), largest)
        if ROUNDS:  # to the nearest, ties to even: beyond 2^23 a float has no fraction
            value = (value + 12582912.0) - 12582912.0
    tl.store(cache + to, value.to(cache.dtype.element_ty), there)


def reference(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:  # fmt: skip
    """``write_kv`` in plain torch."""
    if bool((slots < 0).any()):
        real = slots >= 0
        k, v, slots = k[real], v[real], slots[real]
    slots = slots.long()
    for new, cache, scales in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        if scales is None:
            cache.flatten(0, 1)[slots] = new.to(cache.dtype)
        else:
            cache.flatten(0, 1)[slots], scales.flatten(0, 1)[slots] = compress(new, cache.dtype)
