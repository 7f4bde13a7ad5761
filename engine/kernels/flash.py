"""Attention of other libraries over the same paged cache, used where they are installed, right and faster than ours.

None is imported before it is tried. A trial on made-up sequences decides once for the shapes of a model's layers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from engine.kernels.choice import CHOSEN, fastest

Way = Callable[..., Tensor]
"""Called as ``paged_decode`` or ``paged_prefill`` are, up to ``softcap``."""
DECODE = tuple(range(512, 1024, 61))
"""Lengths of the sequences in the trial of decode."""
PREFILL = ((512, 1024), (300, 411), (1, 700))
"""New rows and lengths of those in the trial of prefill."""


def decode(
    ours: Way, q: Tensor, k_cache: Tensor, v_cache: Tensor, tables: Tensor, lengths: Tensor, scale: float,
    window: int | None, softcap: float | None,
) -> Tensor:  # fmt: skip
    """``paged_decode`` in the fastest way; ``ours`` where none has been found yet."""
    ways: dict[str, Way] = {
        "triton": ours,
        "flash_attn": _flash_decode,
        "flashinfer": _flashinfer_decode,
        "torch": _torch_decode,
    }
    way = ways[_chosen("decode", ways, q, k_cache, scale, window, softcap)]
    return way(q, k_cache, v_cache, tables, lengths, scale, window, softcap)


def prefill(
    ours: Way, q: Tensor, k_cache: Tensor, v_cache: Tensor, tables: Tensor, starts: Tensor, lengths: Tensor,
    scale: float, window: int | None, softcap: float | None,
) -> Tensor:  # fmt: skip
    """``paged_prefill`` in the fastest way; ``ours`` where none has been found yet."""
    ways: dict[str, Way] = {"triton": ours, "flash_attn": _flash_prefill, "torch": _torch_prefill}
    way = ways[_chosen("prefill", ways, q, k_cache, scale, window, softcap)]
    return way(q, k_cache, v_cache, tables, starts, lengths, scale, window, softcap)


def _chosen(
    phase: str, ways: dict[str, Way], q: Tensor, k_cache: Tensor, scale: float, window: int | None,
    softcap: float | None,
) -> str:  # fmt: skip
    if not q.is_cuda or q.dtype not in (torch.float16, torch.bfloat16) or k_cache.dtype != q.dtype:
        return "triton"
    question = (phase, *q.shape[1:], *k_cache.shape[1:], q.dtype, q.device, window, softcap)
    if question in CHOSEN or torch.cuda.is_current_stream_capturing():
        return CHOSEN.get(question, "triton")
    rows, lengths = ([1] * len(DECODE), list(DECODE)) if phase == "decode" else zip(*PREFILL, strict=True)
    arguments = [*_trial(list(rows), list(lengths), q, k_cache), scale, window, softcap]
    if phase == "decode":
        del arguments[4]  # starts
    return fastest(question, {name: partial(way, *arguments) for name, way in ways.items()})


def _trial(rows: list[int], lengths: list[int], q: Tensor, k_cache: Tensor) -> tuple[Tensor, ...]:
    """Queries, caches, tables in random order, starts and lengths, in the shapes of ``q`` and ``k_cache``."""
    block_size = k_cache.shape[1]
    width = -(-max(lengths) // block_size)
    made = torch.Generator(q.device).manual_seed(0)
    normal = partial(torch.randn, dtype=q.dtype, device=q.device, generator=made)
    queries = normal((sum(rows), *q.shape[1:]))
    keys, values = (normal((width * len(rows), *k_cache.shape[1:])) for _ in range(2))
    order = torch.randperm(len(keys), device=q.device, generator=made, dtype=torch.int32)
    whole = partial(torch.tensor, dtype=torch.int32, device=q.device)
    return queries, keys, values, order.view(len(rows), width), whole([0, *accumulate(rows)]), whole(lengths)


def _sides(window: int | None) -> tuple[int, int]:
    """A window as the FlashAttention family has it: how many positions are seen to the left and to the right."""
    return (-1, 0) if window is None else (window - 1, 0)


def _flash_decode(
    q: Tensor, k: Tensor, v: Tensor, tables: Tensor, lengths: Tensor, scale: float, window: int | None,
    softcap: float | None,
) -> Tensor:  # fmt: skip
    from flash_attn import flash_attn_with_kvcache

    found: Tensor = flash_attn_with_kvcache(
        q.unsqueeze(1), k, v, cache_seqlens=lengths, block_table=tables, softmax_scale=scale, causal=True,
        window_size=_sides(window), softcap=softcap or 0.0,
    )  # fmt: skip
    return found.squeeze(1)


def _flash_prefill(
    q: Tensor, k: Tensor, v: Tensor, tables: Tensor, starts: Tensor, lengths: Tensor, scale: float,
    window: int | None, softcap: float | None,
) -> Tensor:  # fmt: skip
    from flash_attn import flash_attn_varlen_func

    ends = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    found: Tensor = flash_attn_varlen_func(
        q, k, v, starts, ends, len(q), tables.shape[1] * k.shape[1], softmax_scale=scale, causal=True,
        window_size=_sides(window), softcap=softcap or 0.0, block_table=tables,
    )  # fmt: skip
    return found


@cache
def _workspace(device: torch.device) -> Tensor:
    return torch.zeros(128 << 20, dtype=torch.uint8, device=device)


def _flashinfer_decode(
    q: Tensor, k: Tensor, v: Tensor, tables: Tensor, lengths: Tensor, scale: float, window: int | None,
    softcap: float | None,
) -> Tensor:  # fmt: skip
    from flashinfer.decode import xqa_batch_decode_with_kv_cache

    if softcap is not None:
        raise ValueError("has no softcap")
    found: Tensor = xqa_batch_decode_with_kv_cache(
        q, (k, v), _workspace(q.device), tables, lengths.view(torch.uint32), tables.shape[1] * k.shape[1],
        bmm1_scale=scale, window_left=_sides(window)[0], kv_layout="NHD",
    )  # fmt: skip
    return found


def _torch_decode(q: Tensor, k: Tensor, v: Tensor, tables: Tensor, lengths: Tensor, *rest: Any) -> Tensor:
    starts = torch.arange(len(q) + 1, dtype=torch.int32, device=q.device)
    return _torch_varlen(1, q, k, v, tables, starts, lengths, *rest)


def _torch_prefill(q: Tensor, *rest: Any) -> Tensor:
    return _torch_varlen(len(q), q, *rest)


def _torch_varlen(
    longest: int, q: Tensor, k: Tensor, v: Tensor, tables: Tensor, starts: Tensor, lengths: Tensor, scale: float,
    window: int | None, softcap: float | None,
) -> Tensor:  # fmt: skip
    from torch.nn.attention.varlen import varlen_attn

    if softcap is not None:
        raise ValueError("has no softcap")
    found = varlen_attn(
        q, k, v, starts, None, longest, tables.shape[1] * k.shape[1], scale=scale, window_size=_sides(window),
        enable_gqa=True, seqused_k=lengths, block_table=tables,
    )  # fmt: skip
    assert isinstance(found, Tensor)
    return found
