"""A model's parts out of its weights: fused, shared out among ranks, in the precision that was chosen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.layers import Linear, Norm, Rotary
from engine.loader import Weights
from engine.packed import Grouped, concatenate
from engine.parallel import Group
from engine.quant import Scheme, linear
from engine.quant_files import weight_of
from engine.rotary import Rope


@dataclass(frozen=True, slots=True)
class Parts:
    """Makes parts of a model from ``weights``. ``dtype`` is what activations have, ``scheme`` what linears hold; the
    head may have one of its own."""

    config: ModelConfig
    weights: Weights
    scheme: Scheme
    dtype: torch.dtype
    device: torch.device
    group: Group
    head_scheme: Scheme | None = None

    def tensor(self, name: str) -> Tensor:
        """A whole tensor, on every rank."""
        return self.weights.get(name).to(device=self.device, dtype=self.dtype)

    def norm(self, name: str) -> Norm:
        """The norm of that name; Gemma's checkpoints hold its weight less 1."""
        weight = self.tensor(f"{name}.weight")
        return Norm(weight + self.config.norm_offset, self.config.norm_eps)

    def rotary(self, rope: Rope) -> Rotary:
        """The angles of ``rope`` at all positions of the context."""
        return Rotary(rope, self.config.head_size, self.config.context, self.dtype, self.device)

    def columns(self, *names: str, bias: bool = False) -> Linear:
        """The linears of those names as one, each with this rank's share of its outputs."""
        weight = concatenate([self.group.shard(self._weight(name), 0, "outputs") for name in names])
        biases = [self.group.shard(self.tensor(f"{name}.bias"), 0, "outputs") for name in names] if bias else None
        return self._linear(weight, None if biases is None else torch.cat(biases))

    def rows(self, name: str, bias: bool = False) -> Linear:
        """The linear of that name with this rank's share of its inputs: the ranks' results are to be summed."""
        weight = self.group.shard(self._weight(name), 1, "inputs")
        return self._linear(weight, self.tensor(f"{name}.bias") if bias and self.group.rank == 0 else None)

    def head(self, embedding: str) -> Linear:
        """What makes logits of hidden states: of its own, or the embedding again."""
        name = embedding if self.config.tied_embeddings else "lm_head"
        weight = self._weight(name)
        scheme = self.scheme if isinstance(weight, Grouped) else self.head_scheme or self.scheme
        return linear(weight.to(self.device), None, scheme)

    def _weight(self, name: str) -> Tensor | Grouped:
        return weight_of(self.weights, name, self.config.quantization)

    def _linear(self, weight: Tensor | Grouped, bias: Tensor | None) -> Linear:
        return linear(weight.to(self.device), bias, self.scheme)
