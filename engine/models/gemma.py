"""Gemma 3, text: norms also behind attention and MLP."""

from __future__ import annotations

from torch import Tensor

from engine.models.llama import Decoder
from engine.models.parts import Parts
from engine.models.qwen import HeadNormBlock


class GemmaBlock(HeadNormBlock):
    """One layer, each half normed before and behind."""

    mlp_norm_name = "pre_feedforward_layernorm"

    def __init__(self, parts: Parts, layer: int) -> None:
        super().__init__(parts, layer)
        self.attention_norm = parts.norm(f"model.layers.{layer}.post_attention_layernorm")
        self.output_norm = parts.norm(f"model.layers.{layer}.post_feedforward_layernorm")

    def after(self, found: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """As of ``Block``."""
        normed, residual = self.mlp_norm.add(self.attention_norm(self.attention.out(found)), residual)
        return self.output_norm(self.mlp(normed)), residual


class Gemma(Decoder):
    """Embedding, layers, last norm and head."""

    block = GemmaBlock
