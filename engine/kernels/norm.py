"""RMS normalisation (Zhang & Sennrich 2019), with the residual's addition in the same pass."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """``x`` [..., H] (plus ``residual``) normalised over its last dimension, and the sum that was normalised.

    Computed in fp32, rounded once. ``offset`` is added to the weight (Gemma's 1 + w). Without a residual the sum is
    ``x`` itself.
    """
    return reference(x, weight, eps, residual, offset)


def reference(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """``rms_norm`` in plain torch."""
    total = x if residual is None else x + residual
    scale = weight.float() + offset if offset else weight.float()
    return torch.nn.functional.rms_norm(total.float(), scale.shape, scale, eps).to(x.dtype), total
