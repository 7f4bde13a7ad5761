"""Llama, and all that is built as it is: SmolLM2, Mistral. What others change is in qwen.py and gemma.py."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from engine.batch import Batch
from engine.kv_cache import KVCache, LayerCache
from engine.layers import MLP, Angles, Attention
from engine.models.parts import Parts


class Block:
    """One decoder layer: norm, attention, norm, MLP, each half added to what came in."""

    mlp_norm_name = "post_attention_layernorm"

    def __init__(self, parts: Parts, layer: int) -> None:
        name, config = f"model.layers.{layer}", parts.config
        own = f"{name}.self_attn"
        self.input_norm = parts.norm(f"{name}.input_layernorm")
        self.attention = Attention(
            config,
            layer,
            parts.columns(*(f"{own}.{each}_proj" for each in "qkv"), bias=config.attention_bias),
            parts.rows(f"{own}.o_proj", bias=config.output_bias),
            self.head_norm(parts, own),
            parts.group,
        )
        self.mlp_norm = parts.norm(f"{name}.{self.mlp_norm_name}")
        self.mlp = MLP(
            config.activation,
            parts.columns(f"{name}.mlp.gate_proj", f"{name}.mlp.up_proj"),
            parts.rows(f"{name}.mlp.down_proj"),
            parts.group,
        )

    def head_norm(self, parts: Parts, name: str) -> Tensor | None:
        """Weights [heads + kv_heads, head_size] of a norm over each query's and each key's head: Llama has none."""
        return None

    def __call__(
        self, x: Tensor, residual: Tensor | None, angles: Angles, batch: Batch, cache: LayerCache
    ) -> tuple[Tensor, Tensor]:
        """``x`` and ``residual``, whose sum [T, hidden] is what comes in, to the two whose sum goes out."""
        normed, residual = (self.input_norm(x), x) if residual is None else self.input_norm.add(x, residual)
        x = self.attention(normed, angles, batch, cache)
        normed, residual = self.mlp_norm.add(x, residual)
        return self.mlp(normed), residual


class Decoder:
    """Embedding, layers, last norm and head."""

    block = Block

    def __init__(self, parts: Parts) -> None:
        config = parts.config
        self._embedding = parts.tensor("model.embed_tokens.weight")
        # Rounded as the embeddings are, since Gemma was trained so.
        self._scale = torch.tensor(config.embedding_scale, dtype=parts.dtype).item()
        self._blocks = [self.block(parts, layer) for layer in range(config.layers)]
        self._norm = parts.norm("model.norm")
        self._head = parts.head("model.embed_tokens")
        self._ropes = [config.rope_of(layer) for layer in range(config.layers)]
        self._rotaries = {rope: parts.rotary(rope) for rope in set(self._ropes)}

    def __call__(self, batch: Batch, cache: KVCache) -> Tensor:
        """The hidden states [T, hidden] of a batch; its keys and values stay in ``cache``."""
        x = functional.embedding(batch.tokens, self._embedding)
        if self._scale != 1:
            x = x * self._scale
        angles = {rope: rotary.at(batch) for rope, rotary in self._rotaries.items()}
        residual = None
        for block, layer, rope in zip(self._blocks, cache.layers, self._ropes, strict=True):
            x, residual = block(x, residual, angles[rope], batch, layer)
        return self._norm(x) if residual is None else self._norm.add(x, residual)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits [N, vocabulary] of hidden states [N, hidden]."""
        return self._head(hidden)
