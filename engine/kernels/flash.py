"""Attention of other libraries over the same paged cache, used where they are installed, right and faster than ours.

None is imported before it is tried. A trial on made-up sequences decides once for the shapes of a model's layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import accumulate

import torch
from torch import Tensor

from engine.kernels.choice import CHOSEN, fastest
from engine.kernels.paged import Past

Way = Callable[[Tensor, Tensor | None, Past], Tensor]
"""Called with queries, starts (None in decode) and what they look at."""
DECODE = tuple(range(512, 1024, 61))
"""Lengths of the sequences in the trial of decode."""
PREFILL = ((512, 1024), (300, 411), (1, 700))
"""New rows and lengths of those in the trial of prefill."""


def fastest_attention(phase: str, ours: Way, q: Tensor, starts: Tensor | None, past: Past) -> Tensor:
    """Attention in the fastest way; ``ours`` where none has been found yet."""
    ways = {"triton": ours, **OTHERS[phase]}
    return ways[_chosen(phase, ways, q, past)](q, starts, past)


def _chosen(phase: str, ways: dict[str, Way], q: Tensor, past: Past) -> str:
    if not q.is_cuda or q.dtype not in (torch.float16, torch.bfloat16) or past.keys.dtype != q.dtype:
        return "triton"
    question = (phase, *q.shape[1:], *past.keys.shape[1:], q.dtype, q.device, past.window, past.softcap)
    if question in CHOSEN or torch.cuda.is_current_stream_capturing():
        return CHOSEN.get(question, "triton")
    rows, lengths = ((1,) * len(DECODE), DECODE) if phase == "decode" else zip(*PREFILL, strict=True)
    queries, starts, trial = _trial(rows, lengths, q, past)
    arguments = queries, None if phase == "decode" else starts, trial
    return fastest(question, {name: partial(way, *arguments) for name, way in ways.items()})


def _trial(rows: tuple[int, ...], lengths: tuple[int, ...], q: Tensor, past: Past) -> tuple[Tensor, Tensor, Past]:
    """Queries, starts, and caches with tables in random order, in the shapes of ``q`` and ``past``."""
    block, width = past.keys.shape[1:], -(-max(lengths) // past.keys.shape[1])
    made = torch.Generator(q.device).manual_seed(0)
    normal = partial(torch.randn, dtype=q.dtype, device=q.device, generator=made)
    whole = partial(torch.tensor, dtype=torch.int32, device=q.device)
    order = torch.randperm(width * len(rows), device=q.device, generator=made, dtype=torch.int32)
    keys, values = normal((len(order), block[0], 2, *block[1:])).unbind(2)  # side by side, as in a cache
    trial = replace(past, keys=keys, values=values, tables=order.view(len(rows), width), lengths=whole(lengths))
    return normal((sum(rows), *q.shape[1:])), whole((0, *accumulate(rows))), trial


def _sides(past: Past) -> tuple[int, int]:
    """A window as the FlashAttention family has it: how many positions are seen to the left and to the right."""
    return (-1, 0) if past.window is None else (past.window - 1, 0)


def _longest(past: Past) -> int:
    return past.tables.shape[1] * past.keys.shape[1]


def _flash_decode(q: Tensor, _: Tensor | None, past: Past) -> Tensor:
    from flash_attn import flash_attn_with_kvcache

    found: Tensor = flash_attn_with_kvcache(
        q.unsqueeze(1), past.keys, past.values, cache_seqlens=past.lengths, block_table=past.tables,
        softmax_scale=past.scale, causal=True, window_size=_sides(past), softcap=past.softcap or 0.0,
    )  # fmt: skip
    return found.squeeze(1)


def _flash_prefill(q: Tensor, starts: Tensor | None, past: Past) -> Tensor:
    from flash_attn import flash_attn_varlen_func

    ends = torch.nn.functional.pad(past.lengths.cumsum(0, dtype=torch.int32), (1, 0))
    found: Tensor = flash_attn_varlen_func(
        q, past.keys, past.values, starts, ends, len(q), _longest(past), softmax_scale=past.scale, causal=True,
        window_size=_sides(past), softcap=past.softcap or 0.0, block_table=past.tables,
    )  # fmt: skip
    return found


@cache
def _workspace(device: torch.device) -> Tensor:
    return torch.zeros(128 << 20, dtype=torch.uint8, device=device)


def _flashinfer_decode(q: Tensor, _: Tensor | None, past: Past) -> Tensor:
    from flashinfer.decode import xqa_batch_decode_with_kv_cache

    if past.softcap is not None:
        raise ValueError("has no softcap")
    found: Tensor = xqa_batch_decode_with_kv_cache(
        q, (past.keys, past.values), _workspace(q.device), past.tables, past.lengths.view(torch.uint32),
        _longest(past), bmm1_scale=past.scale, window_left=_sides(past)[0], kv_layout="NHD",
    )  # fmt: skip
    return found


def _torch(q: Tensor, starts: Tensor | None, past: Past) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    if past.softcap is not None:
        raise ValueError("has no softcap")
    rows = len(q)
    if starts is None:
        rows, starts = 1, torch.arange(len(q) + 1, dtype=torch.int32, device=q.device)
    found = varlen_attn(
        q, past.keys, past.values, starts, None, rows, _longest(past), scale=past.scale, window_size=_sides(past),
        enable_gqa=True, seqused_k=past.lengths, block_table=past.tables,
    )  # fmt: skip
    assert isinstance(found, Tensor)
    return found


OTHERS: dict[str, dict[str, Way]] = {
    "decode": {"flash_attn": _flash_decode, "flashinfer": _flashinfer_decode, "torch": _torch},
    "prefill": {"flash_attn": _flash_prefill, "torch": _torch},
}
