"""Ways to multiply rows by a weight. Which is fastest differs among machines: ``engine.quant`` measures them.

Rows stay independent of each other in every way, one that is not finite spoils no other, and none loses more of its
activations than bf16 does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from math import frexp

import torch
from torch import Tensor
from torch.nn import functional

from engine.kernels.matmul import int4_linear, int8_linear
from engine.packed import Channels, Grouped, Weight, compress, parts

Run = Callable[[Tensor], Tensor]


class Way(ABC):
    """One way to compute ``x`` [M, K] times a weight. ``dtype`` is of ``x`` and of the result."""

    def __init__(self, name: str, dtype: torch.dtype, bytes_per_weight: float) -> None:
        self.name, self.dtype, self.bytes_per_weight = name, dtype, bytes_per_weight

    @abstractmethod
    def hold(self, weight: Weight) -> Run:
        """What computes with ``weight``, which is as the scheme has it. Raises RuntimeError where it cannot."""


class Dense(Way):
    """Plain weights, on a CPU in oneDNN's own layout."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(str(dtype)[6:], dtype, dtype.itemsize)

    def hold(self, weight: Weight) -> Run:
        plain = weight.to(self.dtype) if isinstance(weight, Tensor) else weight.dense(self.dtype)
        if plain.is_cuda or not torch._C._has_mkldnn:
            return lambda x: functional.linear(x, plain)
        multiply = torch.ops.mkldnn._linear_pointwise
        packed = torch.ops.mkldnn._reorder_linear_weight(plain, None)
        return lambda x: multiply(x, packed, None, "none", [], "")


class Half(Way):
    """fp32 products with weights in fp16, for those that lose nothing by it: half the bytes to read. By fbgemm.

    A power of two makes room for the exponents of bf16.
    """

    def __init__(self) -> None:
        super().__init__("float32 with 16-bit weights", torch.float32, 2)

    def hold(self, weight: Weight) -> Run:
        if not isinstance(weight, Tensor):
            raise RuntimeError("no plain weights")
        _, exponent = frexp(max(weight.max().item(), -weight.min().item()))
        scale = 2.0 ** (15 - exponent)  # at most half of fp16's greatest number
        scaled = (weight * scale).float()
        if not all(torch.equal(part.half().float(), part) for part in parts(scaled)):
            raise RuntimeError("16 bits do not hold these weights exactly")
        packed = torch.ops.quantized.linear_prepack_fp16(scaled, None)
        multiply = torch.ops.quantized.linear_dynamic_fp16

        def run(x: Tensor) -> Tensor:
            result: Tensor = multiply(x, packed)
            return result.mul_(1 / scale)

        return run


class Unpacked(Way):
    """Quantised weights as they are: the kernels of a GPU; on a CPU they become plain at each call."""

    def __init__(self, dtype: torch.dtype, bytes_per_weight: float) -> None:
        super().__init__("unpacked as needed", dtype, bytes_per_weight)

    def hold(self, weight: Weight) -> Run:
        if isinstance(weight, Channels):
            return lambda x: int8_linear(x, weight.numbers, weight.scales)
        if isinstance(weight, Grouped):
            return lambda x: int4_linear(x, weight.numbers, weight.scales, weight.minima)
        return lambda x: functional.linear(x, weight.to(x.dtype))


class Int8Weights(Way):
    """int8 weights and 16-bit activations. Scales are 16-bit, too."""

    def __init__(self) -> None:
        super().__init__("int8 weights", torch.bfloat16, 1)

    def hold(self, weight: Weight) -> Run:
        channels = _channels(weight)
        numbers, scales = channels.numbers, channels.scales.bfloat16()
        return lambda x: torch.ops.aten._weight_int8pack_mm(x, numbers, scales)


class Int8Products(Way):
    """int8 products, by oneDNN, of two rows for each: the second has what rounding took from the first.

    One alone loses too much, since a few activations are far greater than the others of their row. Activations go
    without a sign, around a zero in the middle: with one, oneDNN has nothing fast but where a CPU has AMX.
    """

    def __init__(self) -> None:
        super().__init__("int8 products", torch.float32, 1)

    def hold(self, weight: Weight) -> Run:
        channels = _channels(weight)
        levels = _levels()
        multiply = _products(channels.numbers, channels.scales / levels, levels + 1)
        middle = torch.tensor(levels + 1.5)  # numbers are cut off to whole ones: the half rounds them

        def run(x: Tensor) -> Tensor:
            count = len(x)
            greatest = torch.maximum(x.amax(-1, keepdim=True), x.amin(-1, keepdim=True).neg_())
            scaled = torch.addcmul(middle, x, levels / greatest)
            numbers = torch.empty((2 * count, x.shape[1]), dtype=torch.uint8)
            first, second = numbers[:count], numbers[count:]
            first.copy_(scaled)
            second.copy_(scaled.sub_(first).mul_(2 * levels).add_(1.5))
            result = multiply(numbers)
            return result[:count].add_(result[count:], alpha=1 / (2 * levels)).mul_(greatest)

        return run


def _products(weights: Tensor, scales: Tensor, zero: int) -> Run:
    """What multiplies uint8 rows [M, K], less ``zero``, by int8 ``weights`` [N, K] with ``scales`` [N]."""
    packed = torch.ops.onednn.qlinear_prepack(weights, None)
    zeros = torch.zeros(len(scales), dtype=torch.int32)
    multiply = torch.ops.onednn.qlinear_pointwise
    return lambda rows: multiply(rows, 1.0, zero, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], "")


@cache
def _levels() -> int:
    """How far from their zero ``_products`` may have its rows: a CPU without VNNI sums pairs of products in 16 bits."""
    multiply = _products(torch.full((64, 64), 127, dtype=torch.int8), torch.ones(64), 128)
    exact = multiply(torch.full((2, 64), 255, dtype=torch.uint8)) == 64 * 127 * 127
    return 127 if bool(exact.all()) else 63


class Int4Weights(Way):
    """int4 weights and 16-bit activations. Scales and minima are 16-bit, too."""

    def __init__(self, bytes_per_weight: float) -> None:
        super().__init__("int4 weights", torch.bfloat16, bytes_per_weight)

    def hold(self, weight: Weight) -> Run:
        if not isinstance(weight, Grouped):
            raise RuntimeError("no int4 weights")
        convert = torch.ops.aten._convert_weight_to_int4pack_for_cpu
        pairs = parts(weight.numbers, 64)  # 64 outputs lie together
        packed = torch.cat([convert(torch.stack((pair & 15, pair >> 4), -1).flatten(1).int(), 1) for pair in pairs])
        group = weight.shape[1] // weight.scales.shape[1]
        offsets = torch.stack((weight.scales, weight.minima + 8 * weight.scales), -1).transpose(0, 1)
        offsets = offsets.contiguous().bfloat16()
        multiply = torch.ops.aten._weight_int4pack_mm_for_cpu
        return lambda x: multiply(x, packed, group, offsets)


class Float8(Way):
    """fp8 products with a scale a row and a scale an output."""

    def __init__(self) -> None:
        super().__init__("fp8 activations", torch.bfloat16, 1)

    def hold(self, weight: Weight) -> Run:
        plain = weight if isinstance(weight, Tensor) else weight.dense()
        numbers, scales = compress(plain, torch.float8_e4m3fn)

        def run(x: Tensor) -> Tensor:
            own, factors = compress(x, torch.float8_e4m3fn)
            return torch._scaled_mm(own, numbers.t(), factors[:, None], scales[None], out_dtype=torch.bfloat16)

        return run


def _channels(weight: Weight) -> Channels:
    if not isinstance(weight, Channels):
        raise RuntimeError("no int8 weights")
    return weight
