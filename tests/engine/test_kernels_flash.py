"""Other libraries' attention is asked for as they want it: their functions are played by references here."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.kernels import flash
from engine.kernels.paged import Past, reference
from tests.engine.kernel_cases import Heads, Place, caches, close, tables

AT, HEADS, ROWS, LENGTHS = Place(torch.float32), Heads(4, 2, 32), (1, 20, 7), (40, 20, 33)


@pytest.mark.parametrize("window", [None, 9])
def test_flash_attention_gets_lengths_windows_and_blocks_in_its_own_form(
    monkeypatch: pytest.MonkeyPatch, window: int | None
) -> None:
    k, v, _, _ = caches(AT, HEADS, 9, 16)
    blocks, lengths = tables(AT, 3, 3), AT.whole(*LENGTHS)

    def varlen(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, ends: Tensor, *_: int, **facts: Any) -> Tensor:
        assert facts["causal"]
        left, right = facts["window_size"]
        assert right == 0
        seen = left + 1 if left >= 0 else None
        scale, cap = facts["softmax_scale"], facts["softcap"] or None
        return reference(q, starts, Past(k, v, facts["block_table"], ends.diff(), scale, seen, cap))

    def kvcache(q: Tensor, k: Tensor, v: Tensor, cache_seqlens: Tensor, **facts: Any) -> Tensor:
        count = len(q)
        ends = torch.nn.functional.pad(cache_seqlens.cumsum(0), (1, 0))
        return varlen(q.flatten(0, 1), k, v, torch.arange(count + 1), ends, **facts).unsqueeze(1)

    played: Any = ModuleType("flash_attn")
    played.flash_attn_varlen_func, played.flash_attn_with_kvcache = varlen, kvcache
    monkeypatch.setitem(sys.modules, "flash_attn", played)
    q = AT.random(sum(ROWS), HEADS.heads, HEADS.size)
    starts = AT.whole(0, 1, 21, 28)
    for softcap in (None, 5.0):
        past = Past(k, v, blocks, lengths, 0.2, window, softcap)
        right = reference(q, starts, past)
        close(flash._flash_prefill(q, starts, past), right)
        close(flash._flash_decode(q[:3], None, past), reference(q[:3], torch.arange(4), past))
