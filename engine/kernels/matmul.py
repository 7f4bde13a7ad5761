"""Linear layers whose weights are int8 or int4 and become the activations' dtype on the way to the product."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def int8_linear(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None = None) -> Tensor:
    """[..., N] from ``x`` [..., K] and int8 ``weight`` [N, K] with a scale for each output, ``scales`` [N]."""
    return int8_reference(x, weight, scales, bias)


def int4_linear(x: Tensor, weight: Tensor, scales: Tensor, minima: Tensor, bias: Tensor | None = None) -> Tensor:
    """[..., N] from ``x`` [..., K] and uint8 ``weight`` [N, K / 2], two numbers of 0 to 15 a byte, the lower first.

    ``scales`` and ``minima`` are [N, K / group]; a weight is its number times its group's scale plus its minimum
    (GGUF's Q4_1; a zero point z, as in GPTQ and AWQ, is the minimum -z * scale). A group is a multiple of 32.
    """
    return int4_reference(x, weight, scales, minima, bias)


def int8_reference(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None = None) -> Tensor:
    """``int8_linear`` in plain torch."""
    out = functional.linear(x, weight.to(x.dtype)) * scales.to(x.dtype)
    return out if bias is None else out + bias


def int4_reference(x: Tensor, weight: Tensor, scales: Tensor, minima: Tensor, bias: Tensor | None = None) -> Tensor:
    """``int4_linear`` in plain torch."""
    return functional.linear(x, unpack(weight, scales, minima).to(x.dtype), bias)


def pack(numbers: Tensor) -> Tensor:
    """``numbers`` [N, K] of 0 to 15, two a byte: uint8 [N, K / 2]."""
    pairs = numbers.to(torch.uint8).view(*numbers.shape[:-1], -1, 2)
    return pairs[..., 0] | pairs[..., 1] << 4


def unpack(weight: Tensor, scales: Tensor, minima: Tensor) -> Tensor:
    """The weights [N, K] in fp32 that ``int4_linear`` describes."""
    numbers = torch.stack((weight & 15, weight >> 4), -1).flatten(-2).float()
    groups = numbers.view(*scales.shape, -1)
    return (groups * scales.float().unsqueeze(-1) + minima.float().unsqueeze(-1)).flatten(-2)
