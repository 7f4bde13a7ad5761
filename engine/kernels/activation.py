"""Gated activations: SiLU(gate) * up, and GELU's tanh form for Gemma (Shazeer 2020)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from torch.nn import functional

Kind = Literal["silu", "gelu_tanh"]


def gated(x: Tensor, kind: Kind) -> Tensor:
    """[T, I] from ``x`` [T, 2 I], gates first: activation(gate) * up, computed in fp32."""
    return reference(x, kind)


def reference(x: Tensor, kind: Kind) -> Tensor:
    """``gated`` in plain torch."""
    gate, up = x.float().chunk(2, dim=-1)
    active = functional.silu(gate) if kind == "silu" else functional.gelu(gate, approximate="tanh")
    return (active * up).to(x.dtype)
