"""Weights come under one set of names from folders and GGUF files, and a broken model is named before it is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from engine.config import read_config
from engine.errors import BrokenModel, UnsupportedModel
from engine.loader import Weights, open_weights, shapes
from tests.engine.conftest import ARCHITECTURES, save
from tests.unit.engine.ggufs import write

BASES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
}
NORMS = {"post_attention_layernorm": "ffn_norm"}
GEMMA_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def opened(path: Path) -> Weights:
    return open_weights(path, read_config(path))


def converted(folder: Path, file: Path, scheme: gguf.GGMLQuantizationType | None = None) -> Path:
    """A folder's model as a GGUF file, as llama.cpp's converter writes it: llama's queries and keys permuted, 1 + w."""
    config, state = read_config(folder), load_file(folder / "model.safetensors")
    parts = PARTS | (GEMMA_NORMS if config.post_norms else NORMS)
    tensors: dict[str, Any] = {}
    for name, tensor in state.items():
        base, _, kind = name.rpartition(".")
        if base in BASES:
            stored = BASES[base]
        else:
            _, _, layer, part = base.split(".", 3)
            stored = f"blk.{layer}.{parts[part]}"
        values = tensor.numpy()
        if config.architecture in ("llama", "mistral") and stored.endswith(("attn_q", "attn_k")):
            heads = config.heads if stored.endswith("q") else config.kv_heads
            halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        if config.norm_offset and "norm" in stored:
            values = values + 1
        if scheme is not None and values.ndim == 2:
            tensors[f"{stored}.{kind}"] = (gguf.quantize(values.astype(np.float32), scheme), scheme)
        else:
            tensors[f"{stored}.{kind}"] = np.ascontiguousarray(values)
    kind = config.architecture
    facts: dict[str, Any] = {
        "block_count": config.layers,
        "context_length": config.context,
        "embedding_length": config.hidden,
        "feed_forward_length": config.intermediate,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_size,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "rope.freq_base": config.rope.theta,
    }
    return write(file, {f"{kind}.{key}": value for key, value in facts.items()}, tensors, kind)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_folder_in_shards_holds_what_transformers_saved(tmp_path: Path, architecture: str) -> None:
    folder = save(architecture, tmp_path)
    whole = load_file(folder / "model.safetensors")
    weights = opened(folder)
    assert set(weights.names()) == set(whole) == set(shapes(read_config(folder)))
    transformers.AutoModelForCausalLM.from_pretrained(folder).save_pretrained(
        tmp_path / "parts", max_shard_size="150KB"
    )
    parts = opened(tmp_path / "parts")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    for name, tensor in whole.items():
        assert torch.equal(weights.get(name), tensor)
        assert torch.equal(parts.get(name), tensor)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_gguf_file_gives_the_values_of_its_folder(
    tiny: Callable[[str], Path], tmp_path: Path, architecture: str
) -> None:
    folder = tiny(architecture)
    file = converted(folder, tmp_path / "m.gguf")
    weights, original = opened(file), opened(folder)
    assert set(weights.names()) == set(original.names())
    theirs, ours = read_config(folder).norm_offset, read_config(file).norm_offset
    for name in weights.names():
        offset = theirs - ours if "norm" in name else 0.0
        assert torch.equal(weights.get(name), original.get(name) + offset), name


@pytest.mark.parametrize("scheme", ["Q8_0", "Q4_0", "Q4_1", "Q5_1", "F16", "BF16"])
def test_quantised_tensors_have_the_values_that_the_gguf_package_gives_them(tmp_path: Path, scheme: str) -> None:
    folder = save("qwen2", tmp_path, intermediate_size=128)
    kind = gguf.GGMLQuantizationType[scheme]
    weights, original = opened(converted(folder, tmp_path / "m.gguf", kind)), opened(folder)
    name = "model.layers.1.mlp.down_proj.weight"
    plain = original.get(name).numpy()
    assert np.array_equal(weights.get(name).float().numpy(), gguf.dequantize(gguf.quantize(plain, kind), kind))
    quantization = read_config(tmp_path / "m.gguf").quantization
    assert (quantization.name if quantization else scheme) == scheme


def test_blocks_of_256_are_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 100, (64, 210), dtype=np.uint8)
    blocks[:, -2:] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    kind = gguf.GGMLQuantizationType.Q6_K
    folder = save("qwen2", tmp_path, intermediate_size=256)
    file = converted(folder, tmp_path / "plain.gguf")
    reader = gguf.GGUFReader(file)
    tensors: dict[str, Any] = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    tensors["blk.0.ffn_down.weight"] = (blocks, kind)
    values = {name: field.contents() for name, field in reader.fields.items() if name.startswith("qwen2.")}
    weights = opened(write(tmp_path / "k.gguf", values, tensors, "qwen2"))
    read = weights.get("model.layers.0.mlp.down_proj.weight").numpy()
    assert np.array_equal(read, gguf.dequantize(blocks, kind))


def test_progress_is_told_in_bytes_up_to_all(tiny: Callable[[str], Path]) -> None:
    seen: list[tuple[int, int]] = []
    folder = tiny("llama")
    weights = open_weights(folder, read_config(folder), lambda done, total: seen.append((done, total)))
    for name in weights.names():
        weights.get(name)
    assert len(seen) == len(weights.names())
    assert seen == sorted(seen)
    size = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    assert seen[-1] == (size, size)


def test_the_text_model_of_a_multimodal_checkpoint_is_found_under_either_name(tmp_path: Path) -> None:
    folder = save("gemma3", tmp_path)
    state = load_file(folder / "model.safetensors")
    for prefix in ("language_model.model.", "model.language_model."):
        renamed = {name.replace("model.", prefix, 1): tensor for name, tensor in state.items()}
        save_file({**renamed, "vision_tower.patch.weight": torch.ones(3)}, folder / "model.safetensors")
        assert set(opened(folder).names()) == set(state)


def changed(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors")
    return folder


NAME = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda state: state.pop(NAME), rf"lacks 1 tensors: {NAME}"),
        (lambda state: state.update({NAME: torch.ones(3, 64)}), rf"{NAME} is \[3, 64\] and not \[64, 64\]"),
    ],
)
def test_a_missing_or_misshapen_tensor_is_named_before_any_is_read(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], object], named: str
) -> None:
    folder = changed(save("qwen2", tmp_path), change)
    with pytest.raises(BrokenModel, match=named):
        opened(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_tensor_that_is_not_finite_is_named_when_it_is_read(tmp_path: Path, value: float) -> None:
    weights = opened(changed(save("qwen2", tmp_path), lambda state: state[NAME][3, 5].fill_(value)))
    weights.get("model.norm.weight")
    with pytest.raises(BrokenModel, match=rf"{NAME} holds 1 values"):
        weights.get(NAME)


def test_large_but_finite_values_are_taken(tmp_path: Path) -> None:
    weights = opened(changed(save("qwen2", tmp_path), lambda state: state[NAME].fill_(3e38)))
    assert weights.get(NAME)[0, 0] == 3e38


def test_files_that_are_missing_cut_off_foreign_or_pickled_are_named(tmp_path: Path) -> None:
    folder = save("qwen2", tmp_path)
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for length in (0, 5, 100, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(BrokenModel, match=r"model\.safetensors"):
            opened(folder)
    file.unlink()
    with pytest.raises(BrokenModel, match=r"no model\.safetensors"):
        opened(folder)
    (folder / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(UnsupportedModel, match="pickled"):
        opened(folder)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors"}}))
    with pytest.raises(BrokenModel, match="lacks model-00001-of-00002"):
        opened(folder)
    index.write_text(json.dumps({"weight_map": {"a": "../../secret"}}))
    with pytest.raises(BrokenModel, match="outside"):
        opened(folder)


def test_a_tensor_of_another_type_is_refused_by_name(tmp_path: Path) -> None:
    folder = changed(
        save("qwen2", tmp_path), lambda state: state.update({NAME: torch.ones(64, 64).to(torch.float8_e5m2)})
    )
    with pytest.raises(UnsupportedModel, match=f"{NAME} is of type F8_E5M2"):
        opened(folder)


def test_a_gguf_file_that_lacks_a_tensor_is_named(tmp_path: Path) -> None:
    folder = changed(save("qwen2", tmp_path), lambda state: state.pop(NAME))
    with pytest.raises(BrokenModel, match=NAME):
        opened(converted(folder, tmp_path / "m.gguf"))


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_linears_packed_in_int4_are_checked_by_their_packed_shapes(tmp_path: Path, method: str) -> None:
    folder = save("qwen2", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    facts = {"quant_method": method, "bits": 4, "group_size": 32, "zero_point": True}
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": facts}))
    state = load_file(folder / "model.safetensors")
    for name in [name for name in state if name.endswith("_proj.weight")]:
        rows, columns = state.pop(name).shape
        base = name.removesuffix("weight")
        packed = (columns // 8, rows) if method == "gptq" else (columns, rows // 8)
        state[f"{base}qweight"] = torch.zeros(packed, dtype=torch.int32)
        state[f"{base}qzeros"] = torch.zeros((columns // 32, rows // 8), dtype=torch.int32)
        state[f"{base}scales"] = torch.ones((columns // 32, rows), dtype=torch.float16)
    save_file(state, folder / "model.safetensors")
    assert opened(folder).get(NAME.replace("weight", "qweight")).dtype == torch.int32
    changed(folder, lambda state: state.update({NAME.replace("weight", "scales"): torch.ones(1)}))
    with pytest.raises(BrokenModel, match="scales is"):
        opened(folder)
    changed(folder, lambda state: state.pop(NAME.replace("weight", "qzeros")))
    with pytest.raises(BrokenModel, match=r"lacks 1 tensors: .*qzeros"):
        opened(folder)
