"""What a model is: read from a Hugging Face folder's ``config.json`` or from a GGUF file's metadata."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from engine.errors import BrokenModel, UnsupportedModel
from engine.gguf_file import GGUFFile, open_gguf
from engine.rotary import Rope, rope_of

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "gemma3")
ACTIVATIONS: dict[str, Literal["silu", "gelu_tanh"]] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
# What a multimodal Gemma 3 leaves out of its nested text_config, since these are its family's values.
GEMMA_DEFAULTS = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
}
# Tokens that end an answer, by their texts, as llama.cpp finds them where a file's metadata names only one.
ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>")
REFUSED = (
    "mlp_bias",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "use_bidirectional_attention",
    "num_experts",
)
WINDOW = "sliding_attention"
GGUF_DTYPES = {"F32": "float32", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a file's weights are quantised. ``name`` is the scheme in words ("Q4_1", "int4"); GPTQ and AWQ fill the rest.

    ``group_size`` is in input channels, -1 for all of a row. ``zero_offset`` is what GPTQ adds to a stored zero point.
    """

    method: Literal["gptq", "awq", "gguf"]
    name: str
    bits: int = 0
    group_size: int = 0
    zero_offset: int = 0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder's shape, ``architecture`` one of ``ARCHITECTURES``.

    ``windows`` has one entry a layer: how many positions it sees, its own included, None for all. ``rope_local`` turns
    the layers with a window where they differ (Gemma). ``query_scale`` multiplies q·k, ``embedding_scale`` the
    embeddings, and ``norm_offset`` is added to a norm's weights (Gemma's 1 + w; its GGUF files have it in them).
    ``context`` is in tokens; ``dtype`` is what 16-bit and 32-bit weights are stored in.
    """

    architecture: str
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    context: int
    norm_eps: float
    rope: Rope
    rope_local: Rope | None
    windows: tuple[int | None, ...]
    query_scale: float
    activation: Literal["silu", "gelu_tanh"]
    embedding_scale: float
    norm_offset: float
    post_norms: bool
    qk_norm: bool
    attention_bias: bool
    output_bias: bool
    tied_embeddings: bool
    eos_ids: tuple[int, ...]
    dtype: str
    quantization: Quantization | None

    def rope_of(self, layer: int) -> Rope:
        """The rope that turns a layer's queries and keys."""
        return self.rope_local if self.rope_local and self.windows[layer] is not None else self.rope


def read_config(path: Path) -> ModelConfig:
    """The configuration of a folder or a GGUF file.

    Raises ``BrokenModel`` when it is missing or makes no sense, ``UnsupportedModel`` naming what is not supported.
    """
    source = path if path.is_file() else path / "config.json"
    try:
        return _config(_from_gguf(open_gguf(path)) if path.is_file() else _from_folder(path))
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise BrokenModel(f"{source} lacks or garbles a value: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object out of a model's folder; raises ``BrokenModel`` naming the file."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BrokenModel(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise BrokenModel(f"{path} does not hold a JSON object")
    return value


def _from_folder(path: Path) -> dict[str, Any]:
    """The text model's facts: a multimodal Gemma 3 has them in a part of their own."""
    raw = read_json(path / "config.json")
    ends = read_json(path / "generation_config.json") if (path / "generation_config.json").is_file() else {}
    text = raw.get("text_config")
    if raw.get("model_type") == "gemma3" and isinstance(text, dict):
        outer = ("quantization_config", "torch_dtype", "dtype", "eos_token_id")
        raw = {**{key: value for key, value in raw.items() if key in outer}, **text, "model_type": "gemma3_text"}
    return {**raw, "eos_token_id": [*_ids(ends.get("eos_token_id")), *_ids(raw.get("eos_token_id"))]}


def _config(raw: Mapping[str, Any]) -> ModelConfig:
    """From Hugging Face's names; KeyError and the like for what is missing."""
    kind = raw.get("model_type")
    architecture = "gemma3" if kind == "gemma3_text" else kind
    if architecture not in ARCHITECTURES:
        raise UnsupportedModel(f"architecture {kind!r} is not supported; {', '.join(ARCHITECTURES)} are")
    gemma = architecture == "gemma3"
    if gemma:
        raw = {**GEMMA_DEFAULTS, **raw}
    if refused := [key for key in REFUSED if raw.get(key)]:
        raise UnsupportedModel(f"{architecture} with {' and '.join(refused)} is not supported")
    hidden, heads, layers = int(raw["hidden_size"]), int(raw["num_attention_heads"]), int(raw["num_hidden_layers"])
    kv_heads = int(raw.get("num_key_value_heads") or heads)
    head_size = int(raw.get("head_dim") or (128 if architecture == "qwen3" else hidden // heads))
    if heads % kv_heads or head_size % 2 or min(hidden, heads, layers, kv_heads, head_size) < 1:
        raise ValueError(f"{heads} heads of {head_size} over {kv_heads} of keys and values")
    activation = raw.get("hidden_activation") or raw.get("hidden_act", "silu")
    if activation not in ACTIVATIONS:
        raise UnsupportedModel(f"activation {activation!r} is not supported; {', '.join(ACTIVATIONS)} are")
    context = int(raw["max_position_embeddings"])
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = float(raw.get("rope_theta") or 10_000.0)
    local = scaling.get(WINDOW) or {}
    rope = rope_of(scaling.get("full_attention") or scaling, theta, context)
    bias = bool(raw.get("attention_bias"))
    return ModelConfig(
        architecture=architecture,
        vocabulary=int(raw["vocab_size"]),
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        intermediate=int(raw["intermediate_size"]),
        context=max(context, int(rope.original * rope.factor)) if rope.kind == "yarn" else context,
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope=rope,
        rope_local=rope_of(local, float(raw.get("rope_local_base_freq") or 10_000.0), context) if gemma else None,
        windows=_windows(raw, architecture, layers),
        query_scale=float(raw.get("query_pre_attn_scalar", 256) if gemma else head_size) ** -0.5,
        activation=ACTIVATIONS[activation],
        embedding_scale=hidden**0.5 if gemma else 1.0,
        norm_offset=1.0 if gemma and not raw.get("norms_are_whole") else 0.0,
        post_norms=gemma,
        qk_norm=gemma or architecture == "qwen3",
        attention_bias=bias or architecture == "qwen2",
        output_bias=bool(raw.get("attention_output_bias", bias and architecture in ("llama", "qwen3", "gemma3"))),
        tied_embeddings=bool(raw.get("tie_word_embeddings", gemma)),
        eos_ids=tuple(dict.fromkeys(_ids(raw.get("eos_token_id")))),
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
        quantization=_quantization(raw),
    )


def _ids(value: int | list[int] | None) -> list[int]:
    return [] if value is None else [int(value)] if isinstance(value, int) else [int(one) for one in value]


def _windows(raw: Mapping[str, Any], architecture: str, layers: int) -> tuple[int | None, ...]:
    window, kinds = raw.get("sliding_window"), raw.get("layer_types")
    if architecture == "llama" or (architecture.startswith("qwen") and not raw.get("use_sliding_window")):
        window = None
    if architecture == "mistral" or window is None:
        slides = [window is not None] * layers
    elif kinds is not None:
        slides = [kind == WINDOW for kind in kinds]
    elif architecture == "gemma3":
        slides = [(layer + 1) % int(raw.get("sliding_window_pattern", 6)) > 0 for layer in range(layers)]
    else:
        slides = [layer >= int(raw.get("max_window_layers", 28)) for layer in range(layers)]
    if len(slides) != layers:
        raise ValueError(f"layer_types has {len(slides)} entries for {layers} layers")
    return tuple(int(window) if window is not None and one else None for one in slides)


def _quantization(raw: Mapping[str, Any]) -> Quantization | None:
    facts = raw.get("quantization_config")
    if facts is None or isinstance(facts, Quantization):
        return facts
    method, bits = facts.get("quant_method"), int(facts.get("bits", 0))
    if method not in ("gptq", "awq") or bits not in ((4, 8) if method == "gptq" else (4,)):
        raise UnsupportedModel(f"weights quantised by {method!r} in {bits} bits are not supported; GPTQ and AWQ are")
    if method == "awq" and facts.get("version", "gemm") != "gemm":
        raise UnsupportedModel(f"AWQ of version {facts['version']!r} is not supported; gemm is")
    return Quantization(
        method,
        f"int{bits}",
        bits,
        int(facts["group_size"]),
        zero_offset=int(method == "gptq" and facts.get("checkpoint_format", "gptq") == "gptq"),
    )


# What GGUF calls the same.
GGUF_NAMES = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "rope_local_base_freq": "rope.freq_base_swa",
    "sliding_window": "attention.sliding_window",
}
GGUF_SCALING = {
    "factor": "factor",
    "attention_factor": "attn_factor",
    "original_max_position_embeddings": "original_context_length",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


def _from_gguf(file: GGUFFile) -> dict[str, Any]:
    """A GGUF file's metadata under Hugging Face's names."""
    kind, get = file.get("general.architecture"), file.get
    if kind not in ARCHITECTURES or get("{arch}.expert_count"):
        experts = " of experts" if get("{arch}.expert_count") else ""
        raise UnsupportedModel(f"{file.path}: architecture {kind!r}{experts}")
    raw = {name: get(f"{{arch}}.{key}") for name, key in GGUF_NAMES.items()}
    tokens = get("tokenizer.ggml.tokens", [])
    types = get("tokenizer.ggml.token_type", [1] * len(tokens))
    ends = [get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    ends += [number for number, token in enumerate(tokens) if token in ENDS and types[number] == 3]
    scaling = {name: get(f"{{arch}}.rope.scaling.{key}") for name, key in GGUF_SCALING.items()}
    scaling["rope_type"] = get("{arch}.rope.scaling.type", "default").replace("none", "default")
    if place := file.tensors.get("rope_freqs.weight"):
        scaling["divisors"] = struct.unpack_from(f"<{place.nbytes // 4}f", file.data, place.offset)
    scheme, pattern = _scheme(file), get("{arch}.attention.sliding_window_pattern", 6)
    width = raw["hidden_size"] / raw["num_attention_heads"]
    head_size = raw["head_dim"] or int(width)
    return {
        **raw,
        "model_type": kind,
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "head_dim": head_size,
        "rope_scaling": {name: value for name, value in scaling.items() if value is not None},
        "use_sliding_window": False,
        "sliding_window_pattern": pattern,
        "layer_types": [WINDOW if one else "full_attention" for one in pattern] if isinstance(pattern, list) else None,
        # Only Gemma's largest model, of 62 layers, scales by the hidden size; GGUF files do not say it.
        "query_pre_attn_scalar": width if raw["num_hidden_layers"] == 62 else head_size,
        "hidden_activation": "gelu_pytorch_tanh" if kind == "gemma3" else "silu",
        "norms_are_whole": True,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "attention_output_bias": "blk.0.attn_output.bias" in file.tensors,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "eos_token_id": [number for number in ends if number is not None],
        "dtype": GGUF_DTYPES.get(scheme, "float16"),
        "quantization_config": None if scheme in ("F32", "F16", "BF16") else Quantization("gguf", scheme),
    }


def _scheme(file: GGUFFile) -> str:
    """The type that most of the layers' bytes are of: what a file "is", whatever its name says."""
    sizes: Counter[str] = Counter()
    for name, place in file.tensors.items():
        if name.startswith("blk."):
            sizes[place.type] += place.nbytes
    return max(sizes, key=sizes.__getitem__, default="F32")
