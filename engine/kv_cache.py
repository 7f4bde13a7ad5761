"""The keys and values of all positions, in blocks that sequences own through their tables."""

from __future__ import annotations

import mmap
from math import prod

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.kernels.cache import write_kv
from engine.packed import restore
from engine.parallel import Group


class LayerCache:
    """One layer's keys and values, each ``[blocks, block_size, kv_heads, head_size]``, seen flat by ``slots``.

    In int8 and fp8 they have ``scales`` [blocks, block_size, kv_heads], one a slot and head; None otherwise.
    """

    def __init__(self, blocks: int, block_size: int, heads: int, size: int, dtype: torch.dtype, device: torch.device):
        # A position's keys and values lie side by side, so that one copy brings both.
        both = _zeros((blocks, block_size, 2, heads, size), dtype, device)
        self.keys, self.values = both.unbind(2)
        self._slots = both.flatten(0, 1)
        self._rows = self._slots.flatten(1, 2)
        self.key_scales: Tensor | None = None
        self.value_scales: Tensor | None = None
        if dtype.itemsize == 1:
            scales = torch.zeros((2, blocks, block_size, heads), dtype=torch.float32, device=device)
            self.key_scales, self.value_scales = scales[0], scales[1]
            self._scales = scales.flatten(1, 2).transpose(0, 1)

    def write(self, slots: Tensor, both: Tensor) -> None:
        """Store ``both`` [T, 2 kv_heads, head_size], keys before values, at ``slots`` [T]."""
        if both.is_cuda or self.key_scales is not None:
            keys, values = both.chunk(2, 1)
            write_kv(keys, values, self.keys, self.values, slots, self.key_scales, self.value_scales)
            return
        self._rows.index_copy_(0, slots, both.to(self._rows.dtype))

    def read(self, slots: slice | Tensor, sequences: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values, each [sequences, kv_heads, L, head_size], at ``slots`` [sequences * L], one by one.

        Views for a slice of what is stored in ``dtype``, else copies.
        """
        found = _at(self._slots, slots)
        found = found.to(dtype) if self.key_scales is None else restore(found, _at(self._scales, slots), dtype)
        keys, values = found.view(sequences, -1, *found.shape[1:]).permute(2, 0, 3, 1, 4).unbind()
        return keys, values


def _at(whole: Tensor, slots: slice | Tensor) -> Tensor:
    return whole[slots] if isinstance(slots, slice) else whole.index_select(0, slots)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on a CPU in pages that take no memory before they are used, all of which torch's own would touch."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    pages = mmap.mmap(-1, prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=torch.uint8).view(dtype).view(shape)


class KVCache:
    """All layers' caches. ``blocks`` of ``block_size`` positions each."""

    def __init__(
        self, config: ModelConfig, blocks: int, block_size: int, dtype: torch.dtype, device: torch.device, group: Group
    ):
        self.blocks = blocks
        self.block_size = block_size
        self.dtype = dtype
        heads = group.share(config.kv_heads, "key/value heads")
        self.layers = [
            LayerCache(blocks, block_size, heads, config.head_size, dtype, device) for _ in range(config.layers)
        ]


def position_bytes(config: ModelConfig, dtype: torch.dtype, group: Group) -> int:
    """Bytes that one position takes in the caches of all layers, on this rank."""
    head = config.head_size * dtype.itemsize + (4 if dtype.itemsize == 1 else 0)
    return 2 * config.layers * group.share(config.kv_heads, "key/value heads") * head
