"""A model's weights, one tensor at a time, under Hugging Face's names: from safetensors files or a GGUF file."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from engine.config import ModelConfig, Quantization, read_json
from engine.errors import BrokenModel, UnsupportedModel
from engine.gguf_file import GGUFFile, TensorPlace, open_gguf

Progress = Callable[[int, int], None]
SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "I64": 8}
"""Bytes a number, by the types of safetensors files that a served model has."""
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a model of this configuration has, quantised ones as the plain weights that they stand for."""
    hidden, wide = config.hidden, config.intermediate
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
    wanted: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocabulary, hidden)}
    norms = ["input_layernorm", "post_attention_layernorm"]
    norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if config.post_norms else []
    for layer in range(config.layers):
        at = f"model.layers.{layer}."
        wanted |= {f"{at}{norm}.weight": (hidden,) for norm in norms}
        wanted |= {f"{at}self_attn.{name}_norm.weight": (config.head_size,) for name in "qk" if config.qk_norm}
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            wanted[f"{at}self_attn.{name}_proj.weight"] = (rows, hidden)
            if config.attention_bias:
                wanted[f"{at}self_attn.{name}_proj.bias"] = (rows,)
        wanted[f"{at}self_attn.o_proj.weight"] = (hidden, queries)
        if config.output_bias:
            wanted[f"{at}self_attn.o_proj.bias"] = (hidden,)
        wanted |= {f"{at}mlp.{name}_proj.weight": (wide, hidden) for name in ("gate", "up")}
        wanted[f"{at}mlp.down_proj.weight"] = (hidden, wide)
    wanted["model.norm.weight"] = (hidden,)
    if not config.tied_embeddings:
        wanted["lm_head.weight"] = (config.vocabulary, hidden)
    return wanted


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as it lies in a file: by the header, but for what ``read`` returns."""

    shape: tuple[int, ...]
    nbytes: int
    read: Callable[[], torch.Tensor]


class Weights:
    """A model's tensors by name; of a linear packed by GPTQ or AWQ its qweight, qzeros, scales and g_idx.

    Nothing is in memory but what ``get`` returns.
    """

    def __init__(self, tensors: dict[str, Stored], progress: Progress | None = None) -> None:
        self._tensors = tensors
        self._progress = progress
        self._total = sum(tensor.nbytes for tensor in tensors.values())
        self._unread = set(tensors)
        self._done = 0

    def names(self) -> list[str]:
        """All tensors that the files have for this model."""
        return list(self._tensors)

    def get(self, name: str) -> torch.Tensor:
        """One tensor in the dtype that it is stored in; quantised GGUF tensors as fp32.

        It may lie in the mapped file, so it is not to be written to. Raises ``BrokenModel`` when it is not finite.
        """
        stored = self._tensors[name]
        tensor = stored.read()
        if name in self._unread:  # a tied embedding is asked for twice
            # A sum is finite only if all of its terms are, and takes a thirtieth of the time and no memory.
            if tensor.is_floating_point() and not torch.isfinite(tensor.sum()):
                wrong = int((~torch.isfinite(tensor)).sum())
                if wrong:
                    raise BrokenModel(f"{name} holds {wrong} values that are not finite")
            self._unread.remove(name)
            self._done += stored.nbytes
        if self._progress:
            self._progress(self._done, self._total)
        return tensor


def open_weights(path: Path, config: ModelConfig, progress: Progress | None = None) -> Weights:
    """The weights of a folder or a GGUF file, checked by their headers. ``progress`` gets bytes done and bytes in all.

    Raises ``BrokenModel`` naming what is missing or of the wrong shape, ``UnsupportedModel`` for files of other kinds.
    """
    tensors = _in_gguf(open_gguf(path), config) if path.is_file() else _in_folder(path)
    missing, wrong = [], []
    for name, shape in shapes(config).items():
        parts = {name: shape}
        if config.quantization is not None and name not in tensors and name.replace(".weight", ".qweight") in tensors:
            parts = _packed(name, shape, config.quantization)
        missing += [part for part in parts if part not in tensors]
        wrong += [
            f"{part} is {list(tensors[part].shape)} and not {list(wanted)}"
            for part, wanted in parts.items()
            if part in tensors and tensors[part].shape != wanted
        ]
    if missing:
        raise BrokenModel(f"{path} lacks {len(missing)} tensors: {', '.join(missing[:5])}")
    if wrong:
        raise BrokenModel(f"{path} does not fit its configuration: {'; '.join(wrong[:5])}")
    if config.tied_embeddings:
        tensors.pop("lm_head.weight", None)
    return Weights(tensors, progress)


def _packed(name: str, shape: tuple[int, ...], scheme: Quantization) -> dict[str, tuple[int, ...]]:
    """The tensors that GPTQ or AWQ make of a linear [rows, columns]."""
    rows, columns = shape
    per = 32 // scheme.bits
    groups = -(-columns // scheme.group_size) if scheme.group_size > 0 else 1
    packed = (columns // per, rows) if scheme.method == "gptq" else (columns, rows // per)
    parts = {"qweight": packed, "scales": (groups, rows), "qzeros": (groups, rows // per)}
    return {name.replace(".weight", f".{part}"): wanted for part, wanted in parts.items()}


def _in_folder(folder: Path) -> dict[str, Stored]:
    tensors = {}
    for file in _files(folder):
        try:
            opened: Any
            with safe_open(file, framework="pt") as opened:
                facts = {stored: opened.get_slice(stored) for stored in opened.keys()}  # noqa: SIM118 - it is no dict
            for stored, part in facts.items():
                if name := _canonical(stored):
                    shape, kind = tuple(part.get_shape()), part.get_dtype()
                    if kind not in SIZES:
                        raise UnsupportedModel(f"{file}: {stored} is of type {kind}; {', '.join(SIZES)} can be read")
                    tensors[name] = Stored(shape, prod(shape) * SIZES[kind], partial(_from_file, file, stored))
        except (SafetensorError, OSError) as error:
            raise BrokenModel(f"{file} cannot be read: {error}") from error
    return tensors


def _from_file(file: Path, stored: str) -> torch.Tensor:
    """The tensor in a mapping of its own, which ends with it: else the file's pages would stay in memory."""
    opened: Any
    with safe_open(file, framework="pt") as opened:
        tensor: torch.Tensor = opened.get_tensor(stored)
    return tensor


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        if (folder / "model.safetensors").is_file():
            return [folder / "model.safetensors"]
        if list(folder.glob("*.bin")) or list(folder.glob("*.pth")):
            raise UnsupportedModel(f"{folder} holds pickled weights, which could run code; convert them to safetensors")
        raise BrokenModel(f"{folder} has no model.safetensors")
    names = sorted(set(read_json(index).get("weight_map", {}).values()))
    if strange := [name for name in names if Path(name).name != name]:
        raise BrokenModel(f"{index} names files outside of its folder: {', '.join(strange[:3])}")
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise BrokenModel(f"{folder} lacks {', '.join(missing)}")
    return [folder / name for name in names]


def _canonical(name: str) -> str | None:
    """The text model's own name for a tensor; None for what is another model's (vision) or computed anew (rotary)."""
    name = name.replace("model.language_model.", "model.", 1).removeprefix("language_model.")
    return name if name.startswith(("model.", "lm_head.")) and "rotary_emb" not in name else None


_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORMS = {"ffn_norm": "post_attention_layernorm"}
_GEMMA_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def _in_gguf(file: GGUFFile, config: ModelConfig) -> dict[str, Stored]:
    parts = _PARTS | (_GEMMA_NORMS if config.post_norms else _NORMS)
    tensors = {}
    for stored, place in file.tensors.items():
        base, _, kind = stored.rpartition(".")
        if base in _WHOLE:
            name = f"{_WHOLE[base]}.{kind}"
        elif (found := re.fullmatch(r"blk\.(\d+)\.(\w+)", base)) and found[2] in parts:
            name = f"model.layers.{found[1]}.{parts[found[2]]}.{kind}"
        else:
            continue
        heads = 0
        if config.architecture in ("llama", "mistral") and base.endswith(("attn_q", "attn_k")):
            heads = config.heads if base.endswith("q") else config.kv_heads
        tensors[name] = Stored(place.shape, place.nbytes, partial(_from_gguf, name, place, heads))
    return tensors


def _from_gguf(name: str, place: TensorPlace, heads: int) -> torch.Tensor:
    """The tensor; if it has ``heads``, put from llama.cpp's order for rope into Hugging Face's."""
    import gguf  # takes a quarter of a second; folders need none

    # A mapping that ends with the tensor: else the file's pages would stay in memory.
    raw = np.memmap(place.file.path, np.uint8, "c", place.offset, (place.nbytes,))
    if place.type in DTYPES:
        tensor = torch.from_numpy(raw).view(DTYPES[place.type])
    else:
        try:
            values = gguf.dequantize(raw.reshape(place.shape[0], -1), gguf.GGMLQuantizationType[place.type])
        except NotImplementedError as error:
            raise UnsupportedModel(f"{name} is quantised as {place.type}, which cannot be read") from error
        tensor = torch.from_numpy(values)
    tensor = tensor.view(place.shape)
    if heads:
        # [heads, head_size / 2, 2, …] in the file: the two halves that turn together lie side by side.
        tensor = tensor.view(heads, -1, 2, *place.shape[1:]).transpose(1, 2).reshape(place.shape)
    return tensor
