"""Gemma 3, text: norms also behind attention and MLP."""

from __future__ import annotations

from torch import Tensor

from engine.batch import Batch
from engine.kv_cache import LayerCache
from engine.layers import Angles
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

    def __call__(
        self, x: Tensor, residual: Tensor | None, angles: Angles, batch: Batch, cache: LayerCache
    ) -> tuple[Tensor, Tensor]:
        """As of ``Block``."""
        normed, residual = (self.input_norm(x), x) if residual is None else self.input_norm.add(x, residual)
        x = self.attention_norm(self.attention(normed, angles, batch, cache))
        normed, residual = self.mlp_norm.add(x, residual)
        return self.output_norm(self.mlp(normed)), residual


class Gemma(Decoder):
    """Embedding, layers, last norm and head."""

    block = GemmaBlock
