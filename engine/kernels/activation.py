"""Gated activations: SiLU(gate) * up, and GELU's tanh form for Gemma (Shazeer 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.nn import functional

from engine.kernels.launch import Kernel, runs

if TYPE_CHECKING:
    import triton.language as tl

Kind = Literal["silu", "gelu_tanh"]
TILE = 1024
"""Columns that a program computes."""


def gated(x: Tensor, kind: Kind) -> Tensor:
    """[T, I] from ``x`` [T, 2 I], gates first: activation(gate) * up, computed in fp32."""
    if not runs(x):
        return reference(x, kind)
    x = x.contiguous()
    rows, size = x.shape[0], x.shape[-1] // 2
    out = torch.empty((rows, size), dtype=x.dtype, device=x.device)
    _gate[(rows, -(-size // TILE))](x, out, size, kind == "silu", TILE)
    return out


@Kernel
def _gate(x, out, size, SILU: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < size
    gate = tl.load(x + row * 2 * size + column, there, 0.0).to(tl.float32)
    up = tl.load(x + row * 2 * size + size + column, there, 0.0).to(tl.float32)
    # (1 + tanh(z)) / 2 is sigmoid(2 z)
    slope = gate if SILU else 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    tl.store(out + row * size + column, (gate * tl.sigmoid(slope) * up).to(out.dtype.element_ty), there)


def reference(x: Tensor, kind: Kind) -> Tensor:
    """``gated`` in plain torch."""
    gate, up = x.float().chunk(2, dim=-1)
    active = functional.silu(gate) if kind == "silu" else functional.gelu(gate, approximate="tanh")
    return (active * up).to(x.dtype)
