"""Small models as Hugging Face folders: random ones of every architecture, and the real SmolLM2-135M-Instruct."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

torch.set_num_threads(1)  # steps of tiny models are shorter than threads' meeting, above all beside other programs

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,  # so that next tokens differ clearly and do not repeat
    "eos_token_id": 1,
    "bos_token_id": 0,
    "pad_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
CONFIGS: dict[str, Callable[[], transformers.PretrainedConfig]] = {
    "llama": lambda: transformers.LlamaConfig(**SIZES, attention_bias=True, rope_parameters=LLAMA3),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=24),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, rope_parameters=YARN),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **SIZES,
        sliding_window=24,
        query_pre_attn_scalar=32,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
}
ARCHITECTURES = tuple(CONFIGS)


def save(architecture: str, folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A random model of an architecture in fp32, saved as Hugging Face saves it, without a tokenizer."""
    torch.manual_seed(seed)
    config = CONFIGS[architecture]()
    for name, value in changes.items():
        setattr(config, name, value)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if name.endswith(("norm.weight", "bias")):  # they start as ones and zeros, which would hide a part left out
            torch.nn.init.normal_(parameter, parameter.mean().item(), 0.2)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder with a random model of the architecture that is asked for."""
    made: dict[str, Path] = {}

    def folder(architecture: str) -> Path:
        if architecture not in made:
            made[architecture] = save(architecture, tmp_path_factory.mktemp(architecture))
        return made[architecture]

    return folder


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct in bf16, with its tokenizer; made at the first use, then cached."""
    program = Path(__file__).parents[2] / "scripts" / "engines" / "safetensors"
    made = subprocess.run([sys.executable, program], check=True, capture_output=True, text=True, timeout=900)
    return Path(made.stdout.strip())
