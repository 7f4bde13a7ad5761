"""Attention of one new position a sequence over the paged cache."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels import prefill


def paged_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    tables: Tensor,
    lengths: Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """Attention of ``q`` [S, Hq, D], the last of ``lengths`` [S] positions of each sequence; returns [S, Hq, D].

    The rest is as for ``paged_prefill``. A sequence of length 0 is padding; its rows become 0.
    """
    return reference(q, k_cache, v_cache, tables, lengths, scale, window, softcap, k_scale, v_scale)


def reference(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    tables: Tensor,
    lengths: Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """``paged_decode`` in plain torch, in fp32."""
    starts = torch.arange(len(q) + 1)
    return prefill.reference(q, k_cache, v_cache, tables, starts, lengths, scale, window, softcap, k_scale, v_scale)
