"""Qwen 2 and 3: the third norms each head of queries and keys. Qwen 2's biases are in its configuration."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.models.llama import Block, Decoder
from engine.models.parts import Parts


class HeadNormBlock(Block):
    """One layer with a norm over each query's and each key's head, where the configuration says so."""

    def head_norm(self, parts: Parts, name: str) -> Tensor | None:
        """One row a head: all queries' have the same weight, and all keys'."""
        config, group = parts.config, parts.group
        if not config.qk_norm:
            return None
        shares = (("q", group.share(config.heads, "heads")), ("k", group.share(config.kv_heads, "key/value heads")))
        return torch.cat([parts.norm(f"{name}.{each}_norm").weight.expand(heads, -1) for each, heads in shares])


class Qwen(Decoder):
    """Embedding, layers, last norm and head."""

    block = HeadNormBlock
