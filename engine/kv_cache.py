"""The keys and values of all positions, in blocks that sequences own through their tables."""

from __future__ import annotations

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
        # Zeroed by the operating system when a page is first touched: what is not used takes no memory.
        both = torch.zeros((2, blocks, block_size, heads, size), dtype=dtype, device=device)
        self.keys, self.values = both[0], both[1]
        self._slots = both.view(2, blocks * block_size, heads, size)
        self._heads = tuple(part.transpose(0, 1).unsqueeze(0) for part in self._slots)
        self.key_scales: Tensor | None = None
        self.value_scales: Tensor | None = None
        if dtype.itemsize == 1:
            scales = torch.zeros((2, blocks, block_size, heads), dtype=torch.float32, device=device)
            self.key_scales, self.value_scales = scales[0], scales[1]
            self._scales = scales.view(2, blocks * block_size, heads)

    def write(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store ``keys`` and ``values`` [T, kv_heads, head_size] at ``slots`` [T]."""
        if keys.is_cuda or self.key_scales is not None:
            write_kv(keys, values, self.keys, self.values, slots, self.key_scales, self.value_scales)
            return
        self._slots[0].index_copy_(0, slots, keys.to(self._slots.dtype))
        self._slots[1].index_copy_(0, slots, values.to(self._slots.dtype))

    def read(self, slots: slice | Tensor, first: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values, each [1, kv_heads, L, head_size], at ``slots`` from the one with index ``first`` on.

        Views for a slice of what is stored in ``dtype``, else copies.
        """
        if isinstance(slots, slice):
            start, count = slots.start + first, slots.stop - slots.start - first
            if dtype == self._slots.dtype:
                return self._heads[0].narrow(2, start, count), self._heads[1].narrow(2, start, count)
            slots = slice(start, start + count)
        else:
            slots = slots[first:]
        found = _at(self._slots, slots)
        found = found.to(dtype) if self.key_scales is None else restore(found, _at(self._scales, slots), dtype)
        keys, values = found.transpose(1, 2).unsqueeze(1)
        return keys, values


def _at(whole: Tensor, slots: slice | Tensor) -> Tensor:
    return whole[:, slots] if isinstance(slots, slice) else whole.index_select(1, slots)


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
