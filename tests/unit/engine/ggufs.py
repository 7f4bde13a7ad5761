"""Small GGUF files, written by the gguf package: a header with a tokenizer, and tensors where a test needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

LLAMA: dict[str, Any] = {
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": 8,
    "llama.feed_forward_length": 16,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
}


def write(
    path: Path, values: Mapping[str, Any], tensors: Mapping[str, Any] | None = None, architecture: str = "llama"
) -> Path:
    """A file with these metadata; a tensor is an array, or quantised bytes and their type."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in values.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, tensor in (tensors or {"token_embd.weight": np.zeros((16, 8), np.float32)}).items():
        if isinstance(tensor, tuple):
            writer.add_tensor(name, tensor[0], raw_dtype=tensor[1])
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def bpe(tokens: Sequence[str], merges: Sequence[str], special: Sequence[str], pre: str, **more: Any) -> dict[str, Any]:
    """Metadata of a byte-level tokenizer."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.merges": list(merges),
    } | {f"tokenizer.ggml.{key}": value for key, value in more.items()}
