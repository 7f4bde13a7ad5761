"""What decoders are made of: norms, rotary positions, attention with its projections, and the gated MLP.

On a GPU these are the kernels; on a CPU the fewest operators of torch, since a step there is thousands of small ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.attention import attend
from engine.batch import Batch
from engine.config import ModelConfig
from engine.kernels.activation import Kind, gated
from engine.kernels.norm import rms_norm
from engine.kernels.rope import rope
from engine.kv_cache import LayerCache
from engine.parallel import Group
from engine.rotary import Rope

Linear = Callable[[Tensor], Tensor]


FEW = 8
"""Rows up to which a norm's time is that of its calls."""


class Norm:
    """Root-mean-square norm (Zhang & Sennrich 2019) over the last dimension."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self.weight = weight
        self._epsilon = epsilon
        self._both = torch.cat((weight, weight))

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` [..., size], normalised; contiguous, as linears need their rows."""
        if x.is_cuda:
            return rms_norm(x, self.weight, self._epsilon)[0]
        if x.dim() == 2 and len(x) <= FEW:
            # torch has one operator for a layer norm and eight for this one. Of x and -x the mean is 0, and the
            # variance x's mean square.
            both = torch.cat((x, -x), -1)
            normed = torch.layer_norm(both, self._both.shape, self._both, None, self._epsilon)
            return normed[:, : x.shape[1]].contiguous()
        return functional.rms_norm(x, self.weight.shape, self.weight, self._epsilon)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """``x`` + ``residual``, both [T, size]: normalised, and as it is."""
        if x.is_cuda:
            return rms_norm(x, self.weight, self._epsilon, residual)
        total = x.add_(residual)
        return self(total), total


@dataclass(frozen=True, slots=True)
class Angles:
    """A batch's angles. ``table`` [P, head_size] holds all positions' cosines, then their sines, for the kernels.

    ``cosines`` and ``sines`` [T, 1, head_size] are those of the batch in both halves, the first half's sines negative.
    """

    table: Tensor
    cosines: Tensor
    sines: Tensor


class Rotary:
    """Rotary positions (Su et al. 2021) up to ``context``, in halves as Hugging Face's checkpoints have them."""

    def __init__(self, rope: Rope, head_size: int, context: int, dtype: torch.dtype, device: torch.device) -> None:
        frequencies = torch.tensor(rope.frequencies(head_size), dtype=torch.float32)
        angles = torch.outer(torch.arange(context, dtype=torch.float32), frequencies)
        self._table = (torch.cat((angles.cos(), angles.sin()), -1) * rope.attention_factor).to(device)
        self._dtype = dtype

    def at(self, batch: Batch) -> Angles:
        """The angles of a batch's positions."""
        if self._table.is_cuda:
            return Angles(self._table, self._table, self._table)
        cosines, sines = self._table[batch.positions].to(self._dtype).unsqueeze(1).chunk(2, -1)
        return Angles(self._table, torch.cat((cosines, cosines), -1), torch.cat((-sines, sines), -1))


def turn(x: Tensor, heads: int, angles: Angles, batch: Batch) -> None:
    """Turn ``x`` [T, heads + kv_heads, head_size], queries before keys, by its positions' angles, in place."""
    if x.is_cuda:
        rope(x[:, :heads], x[:, heads:], angles.table, batch.positions)
        return
    swapped = x.roll(x.shape[-1] // 2, -1)
    x.mul_(angles.cosines).addcmul_(swapped, angles.sines)


class Attention:
    """Self-attention of one layer; this rank's heads of it.

    ``norm`` [heads + kv_heads, head_size] is the weight of the norm over each query's and key's head, if there is one.
    """

    def __init__(
        self, config: ModelConfig, layer: int, qkv: Linear, out: Linear, norm: Tensor | None, group: Group
    ) -> None:
        self._heads = group.share(config.heads, "heads")
        self._kv_heads = group.share(config.kv_heads, "key/value heads")
        self._size = config.head_size
        self._window = config.windows[layer]
        self._scale = config.query_scale
        self._epsilon = config.norm_eps
        self._qkv, self._out, self._norm, self._group = qkv, out, norm, group

    def project(self, x: Tensor, angles: Angles, batch: Batch) -> Tensor:
        """Of ``x`` [T, hidden]: turned queries, turned keys and values, [T, heads + 2 kv_heads, head_size]."""
        heads, kv_heads = self._heads, self._kv_heads
        qkv = self._qkv(x).view(x.shape[0], heads + 2 * kv_heads, self._size)
        turning = qkv[:, : heads + kv_heads]
        if self._norm is not None:
            torch.mul(functional.rms_norm(turning, (self._size,), None, self._epsilon), self._norm, out=turning)
        turn(turning, heads, angles, batch)
        return qkv

    def attend(self, qkv: Tensor, batch: Batch, cache: LayerCache) -> Tensor:
        """What ``project`` made, to [T, heads * head_size]; keys and values stay in ``cache``."""
        cache.write(batch.slots, qkv[:, self._heads :])
        return attend(qkv[:, : self._heads], cache, batch, self._scale, self._window).flatten(1)

    def out(self, found: Tensor) -> Tensor:
        """What ``attend`` found, to [T, hidden]."""
        return self._group.total(self._out(found))


class MLP:
    """The gated feed-forward part of one layer; this rank's columns of it."""

    def __init__(self, activation: Kind, gate_up: Linear, down: Linear, group: Group) -> None:
        self._activation = activation
        self._gate_up, self._down, self._group = gate_up, down, group

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` [T, hidden] to [T, hidden]."""
        return self._group.total(self._down(self._gated(self._gate_up(x))))

    def _gated(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            return gated(x, self._activation)
        gate, up = x.chunk(2, -1)
        active = functional.silu(gate) if self._activation == "silu" else functional.gelu(gate, approximate="tanh")
        return active.mul_(up)
