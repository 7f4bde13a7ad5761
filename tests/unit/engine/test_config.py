"""What a model is, is read from its folder or its file; what is not supported is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.config import ModelConfig, read_config
from engine.errors import BrokenModel, UnsupportedModel
from tests.unit.engine.ggufs import LLAMA, bpe, write

BASE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "torch_dtype": "bfloat16",
}


def folder(path: Path, ends: object = None, **changes: Any) -> Path:
    (path / "config.json").write_text(json.dumps({k: v for k, v in {**BASE, **changes}.items() if v != "absent"}))
    if ends is not None:
        (path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return path


def read(path: Path, **changes: Any) -> ModelConfig:
    return read_config(folder(path, **changes))


def test_a_llama_folder_says_what_it_is(tmp_path: Path) -> None:
    config = read_config(folder(tmp_path, ends=[7, 2]))
    assert (config.architecture, config.vocabulary, config.hidden, config.layers) == ("llama", 100, 64, 7)
    assert (config.heads, config.kv_heads, config.head_size, config.intermediate) == (4, 2, 16, 128)
    assert config.windows == (None,) * 7
    assert config.query_scale == 16**-0.5
    assert (config.eos_ids, config.dtype) == ((7, 2), "bfloat16")
    assert not any((config.tied_embeddings, config.attention_bias, config.qk_norm, config.post_norms))
    assert config.quantization is None


def test_families_differ_as_their_papers_say(tmp_path: Path) -> None:
    assert read(tmp_path, sliding_window=32).windows == (None,) * 7
    mistral = read(tmp_path, model_type="mistral", sliding_window=32)
    assert mistral.windows == (32,) * 7
    qwen2 = read(tmp_path, model_type="qwen2", sliding_window=32, use_sliding_window=True, max_window_layers=5)
    assert (qwen2.attention_bias, qwen2.output_bias, qwen2.qk_norm) == (True, False, False)
    assert qwen2.windows == (None,) * 5 + (32,) * 2
    assert read(tmp_path, model_type="qwen2", sliding_window=32).windows == (None,) * 7
    qwen3 = read(tmp_path, model_type="qwen3")
    assert (qwen3.head_size, qwen3.qk_norm, qwen3.attention_bias) == (128, True, False)


def test_a_multimodal_gemma_is_its_nested_text_model_with_its_familys_defaults(tmp_path: Path) -> None:
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 7,
        "sliding_window": 1024,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gemma3", "text_config": text, "torch_dtype": "bfloat16", "eos_token_id": [1, 106]})
    )
    config = read_config(tmp_path)
    assert (config.architecture, config.vocabulary, config.heads, config.head_size) == ("gemma3", 262_208, 8, 256)
    assert config.windows == (1024,) * 5 + (None, 1024)
    assert config.rope_local is not None
    assert (config.rope.theta, config.rope.factor, config.rope_local.theta) == (1_000_000.0, 8.0, 10_000.0)
    assert config.rope_of(5) is config.rope
    assert config.rope_of(0) is config.rope_local
    assert (config.activation, config.norm_offset, config.embedding_scale) == ("gelu_tanh", 1.0, 2560**0.5)
    assert (config.post_norms, config.tied_embeddings, config.eos_ids) == (True, True, (1, 106))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "mamba"}, "mamba"),
        ({"hidden_act": "relu"}, "relu"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "bitsandbytes"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3, "group_size": 128}}, "3 bits"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemv"}}, "gemv"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read(tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": "absent"}, "hidden_size"),
        ({"hidden_size": "wide"}, "wide"),
        ({"num_attention_heads": 0}, r"config\.json"),
        ({"num_key_value_heads": 3}, "4 heads"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "big"}}, "big"),
        ({"model_type": "gemma3_text", "sliding_window": 4, "layer_types": ["sliding_attention"]}, "1 entries for 7"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_broken_and_says_where(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(BrokenModel, match=named):
        read(tmp_path, **changes)


def test_a_folder_without_a_readable_configuration_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(BrokenModel, match=r"config\.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(BrokenModel, match=r"config\.json"):
        read_config(tmp_path)


def test_quantised_folders_tell_their_scheme(tmp_path: Path) -> None:
    facts = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    scheme = read(tmp_path, quantization_config=facts).quantization
    assert scheme is not None
    assert (scheme.method, scheme.name, scheme.group_size) == ("gptq", "int4", 128)
    assert scheme.zero_offset == 1
    newer = read(tmp_path, quantization_config={**facts, "checkpoint_format": "gptq_v2"}).quantization
    assert newer is not None
    assert newer.zero_offset == 0
    awq = read(tmp_path, quantization_config={"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True})
    assert awq.quantization is not None
    assert (awq.quantization.method, awq.quantization.zero_offset) == ("awq", 0)


def test_a_stretched_context_counts(tmp_path: Path) -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    assert read(tmp_path, rope_scaling=scaling).context == 16384


def test_a_gguf_file_says_the_same_in_its_own_words(tmp_path: Path) -> None:
    tokens = ["<|eot_id|>", "<|im_end|>", "b", "<|endoftext|>"]  # the first is plain text here
    special = ["<|im_end|>", "<|endoftext|>"]
    tensors = {
        "token_embd.weight": np.zeros((4, 8), np.float32),
        "blk.0.attn_q.weight": np.zeros((8, 8), np.float16),
        "rope_freqs.weight": np.array([1.0, 8.0], np.float32),
    }
    values = LLAMA | bpe(tokens, [], special, "smollm", eos_token_id=3, bos_token_id=0)
    config = read_config(write(tmp_path / "m.gguf", values, tensors))
    assert (config.architecture, config.vocabulary, config.heads, config.kv_heads) == ("llama", 4, 2, 1)
    assert (config.head_size, config.context, config.tied_embeddings) == (4, 64, True)
    assert (config.dtype, config.quantization) == ("float16", None)
    assert config.eos_ids == (3, 1)
    plain = 10000.0 ** (-2 / 4)
    assert config.rope.frequencies(4) == pytest.approx((1.0, plain / 8))


def test_a_gemma_file_has_its_norms_offset_in_it(tmp_path: Path) -> None:
    values = {key.replace("llama", "gemma3"): value for key, value in LLAMA.items()}
    values |= {"gemma3.attention.sliding_window": 16, "gemma3.block_count": 6, "gemma3.attention.key_length": 8}
    values |= {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}
    values |= {"gemma3.rope.freq_base_swa": 5000.0}
    config = read_config(write(tmp_path / "g.gguf", values, architecture="gemma3"))
    assert (config.norm_offset, config.activation) == (0.0, "gelu_tanh")
    assert (config.dtype, config.quantization) == ("float32", None)
    assert config.windows == (16,) * 5 + (None,)
    assert (config.rope.kind, config.rope.factor) == ("linear", 8.0)
    told = values | {"gemma3.attention.sliding_window_pattern": [True, False, True, True, False, False]}
    windows = read_config(write(tmp_path / "p.gguf", told, architecture="gemma3")).windows
    assert windows == (16, None, 16, 16, None, None)
    assert config.rope_local is not None
    assert (config.rope_local.kind, config.rope_local.theta, config.query_scale) == ("default", 5000.0, 8**-0.5)
    largest = read_config(write(tmp_path / "l.gguf", values | {"gemma3.block_count": 62}, architecture="gemma3"))
    assert largest.query_scale == (8 / 2) ** -0.5


def test_a_gguf_files_scaling_has_other_names_and_its_qwen_no_windows(tmp_path: Path) -> None:
    values = {key.replace("llama", "qwen2"): value for key, value in LLAMA.items()}
    values |= {"qwen2.attention.sliding_window": 16, "qwen2.rope.scaling.type": "yarn"}
    values |= {"qwen2.rope.scaling.factor": 4.0, "qwen2.rope.scaling.original_context_length": 32}
    values |= {"qwen2.rope.scaling.attn_factor": 0.5, "qwen2.rope.scaling.yarn_beta_fast": 16.0}
    values |= {"qwen2.rope.scaling.yarn_beta_slow": 2.0}
    config = read_config(write(tmp_path / "y.gguf", values, architecture="qwen2"))
    assert (config.windows, config.context) == ((None,), 128)
    assert (config.rope.attention_factor, config.rope.beta_fast, config.rope.beta_slow) == (0.5, 16.0, 2.0)


def test_a_gguf_file_that_lacks_a_value_is_broken(tmp_path: Path) -> None:
    values = {key: value for key, value in LLAMA.items() if not key.endswith("embedding_length")}
    with pytest.raises(BrokenModel, match=r"m\.gguf"):
        read_config(write(tmp_path / "m.gguf", values))
    with pytest.raises(UnsupportedModel, match="mamba"):
        read_config(write(tmp_path / "o.gguf", LLAMA, architecture="mamba"))
