"""Weights out of files that GPTQ or AWQ quantised: the same numbers as in the file, not quantised anew."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.config import Quantization
from engine.kernels.matmul import pack
from engine.loader import Weights
from engine.packed import GROUP, Grouped

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight outputs each half byte of an AWQ word holds, the lowest half byte first."""


def weight_of(weights: Weights, name: str, facts: Quantization | None) -> Tensor | Grouped:
    """The weight [N, K] of the linear of that name, packed where it is so in the file and in regular groups.

    Plain fp32 where it is in 8 bit, or where GPTQ gave inputs that are not neighbours the same scale.
    Raises ``BrokenModel`` as ``Weights.get`` does.
    """
    if facts is None or facts.method == "gguf" or f"{name}.qweight" not in weights.names():
        return weights.get(f"{name}.weight")
    words, zeros = weights.get(f"{name}.qweight"), weights.get(f"{name}.qzeros")
    scales = weights.get(f"{name}.scales").float().t().contiguous()  # [N, groups]
    if facts.method == "awq":
        numbers, points = _awq(words).t(), _awq(zeros).t()
    else:
        numbers, points = _spread(words.t(), facts.bits), _spread(zeros, facts.bits).t() + facts.zero_offset
    minima = points * -scales
    count = numbers.shape[1]
    group = count // scales.shape[1]
    order = weights.get(f"{name}.g_idx").long() if f"{name}.g_idx" in weights.names() else None
    if order is not None and not torch.equal(order, torch.arange(count) // group):
        return numbers * scales[:, order] + minima[:, order]
    if facts.bits != 4 or group % GROUP:
        return numbers * scales.repeat_interleave(group, 1) + minima.repeat_interleave(group, 1)
    return Grouped(pack(numbers.contiguous()), scales, minima.contiguous())


def _spread(words: Tensor, bits: int) -> Tensor:
    """The numbers in int32 ``words`` [..., n], lowest bits first: [..., n * 32 / bits]."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return (words[..., None] >> shifts & (1 << bits) - 1).flatten(-2)


def _awq(words: Tensor) -> Tensor:
    """The numbers in AWQ's ``words`` [..., n], in the order of the outputs: [..., 8 n]."""
    places = torch.tensor(AWQ_ORDER).argsort()
    return _spread(words, 4).view(*words.shape, 8)[..., places].flatten(-2)
