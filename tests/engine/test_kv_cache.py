"""What a cache gives back is what was put there, up to what its numbers can hold."""

from __future__ import annotations

import pytest
import torch

from engine.kv_cache import LayerCache
from tests.engine.driving import CPU

ERRORS = {torch.float32: 0.0, torch.int8: 0.5 / 127, torch.float8_e4m3fn: 1 / 16}
"""Of the greatest number of a slot and head."""


@pytest.mark.parametrize("kept", ERRORS, ids=str)
@pytest.mark.parametrize("slots", [torch.arange(4, 11), torch.tensor([19, 2, 0, 8, 7, 11, 3])], ids=["run", "apart"])
def test_keys_and_values_come_back_from_their_slots(kept: torch.dtype, slots: torch.Tensor) -> None:
    cache = LayerCache(5, 4, 2, 16, kept, CPU)
    size = torch.tensor([1e-3, 1.0, 500.0, 0.0, 7.0, 1e4, 3.0])[:, None, None]  # a scale for each slot and head
    put = [torch.randn((7, 2, 16), generator=torch.Generator().manual_seed(seed)) * size for seed in (0, 1)]
    cache.write(slots, torch.cat(put, 1))
    where = slice(6, 11) if slots[0] == 4 else slots[2:]
    for new, found in zip(put, cache.read(where, 1, torch.float32), strict=True):
        right = new[2:].transpose(0, 1)[None]
        limit = right.abs().amax(-1, keepdim=True) * ERRORS[kept] * 1.001
        assert found.shape == right.shape
        assert ((found - right).abs() <= limit).all()
