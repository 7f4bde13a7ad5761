"""Rotary position embedding (Su et al. 2021) in the half-split form of Hugging Face's checkpoints."""

from __future__ import annotations

from torch import Tensor


def rope(q: Tensor, k: Tensor, cos_sin: Tensor, positions: Tensor) -> None:
    """Rotate ``q`` [T, Hq, D] and ``k`` [T, Hk, D] in place, by ``positions`` [T].

    ``cos_sin`` [P, D] holds D / 2 cosines and then D / 2 sines for every position. Both may be views into one fused
    projection; their last dimension has to be contiguous.
    """
    reference(q, k, cos_sin, positions)


def reference(q: Tensor, k: Tensor, cos_sin: Tensor, positions: Tensor) -> None:
    """``rope`` in plain torch."""
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
    for heads in (q, k):
        first, second = heads.float().chunk(2, dim=-1)
        half = first.shape[-1]
        heads[..., :half] = first * cos - second * sin
        heads[..., half:] = second * cos + first * sin
