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
        qkv, residual = self.before(x, residual, angles, batch)
        return self.after(self.attention.attend(qkv, batch, cache), residual)

    def before(self, x: Tensor, residual: Tensor | None, angles: Angles, batch: Batch) -> tuple[Tensor, Tensor]:
        """What comes before attention reads the cache: turned queries and keys with values, and the residual."""
        normed, residual = (self.input_norm(x), x) if residual is None else self.input_norm.add(x, residual)
        return self.attention.project(normed, angles, batch), residual

    def after(self, found: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """What comes behind it, of what it ``found``, to the two whose sum goes out."""
        normed, residual = self.mlp_norm.add(self.attention.out(found), residual)
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
        x, residual = self._embed(batch), None
        angles = {rope: rotary.at(batch) for rope, rotary in self._rotaries.items()}
        for block, layer, rope in zip(self._blocks, cache.layers, self._ropes, strict=True):
            x, residual = block(x, residual, angles[rope], batch, layer)
        return self._norm(x) if residual is None else self._norm.add(x, residual)[0]

    def _embed(self, batch: Batch) -> Tensor:
        x = functional.embedding(batch.tokens, self._embedding)
        return x if self._scale == 1 else x * self._scale

    def piece(self, layer: int, batch: Batch, found: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
        """What lies between the attentions of ``layer`` - 1, which ``found`` something, and of ``layer``.

        That one's queries and keys, turned, its values, and the residual; behind the last layer the hidden states. It
        reads nothing of the batch but tokens and positions, and no cache. Before layer 0 nothing is found.
        """
        if layer == len(self._blocks):
            return (self._norm.add(*self._blocks[-1].after(found, residual))[0],)
        x, rest = self._blocks[layer - 1].after(found, residual) if layer else (self._embed(batch), None)
        return self._blocks[layer].before(x, rest, self._rotaries[self._ropes[layer]].at(batch), batch)

    def attend(self, layer: int, qkv: Tensor, batch: Batch, cache: KVCache) -> Tensor:
        """What the attention of ``layer`` finds in the cache, where its keys and values stay."""
        return self._blocks[layer].attention.attend(qkv, batch, cache.layers[layer])

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits [N, vocabulary] of hidden states [N, hidden]."""
        return self._head(hidden)
