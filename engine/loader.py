"""A model's weights, one tensor at a time, under Hugging Face's names: from safetensors files or a GGUF file."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from engine.config import ModelConfig, Quantization, read_json
from engine.errors import BrokenModel, UnsupportedModel
from engine.gguf_file import GGUFFile, open_gguf

Progress = Callable[[int, int], None]
PACKED = ("qweight", "qzeros", "scales", "g_idx")
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


class Weights(ABC):
    """What both kinds of files have in common. Nothing is read into memory but what ``get`` returns."""

    def __init__(self, config: ModelConfig, progress: Progress | None) -> None:
        self._progress = progress
        self._done = 0
        self.config = config

    @abstractmethod
    def names(self) -> list[str]:
        """All tensors that the model has; of a linear packed by GPTQ or AWQ its qweight, qzeros, scales and g_idx."""

    @abstractmethod
    def scheme(self, name: str) -> str:
        """How a tensor is stored: "F32", "BF16", "I32", "Q4_1" …"""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, by the file's header."""

    @abstractmethod
    def stored(self, name: str) -> int:
        """A tensor's bytes in the file."""

    @abstractmethod
    def _read(self, name: str) -> torch.Tensor:
        """The tensor itself."""

    def nbytes(self) -> int:
        """All tensors' bytes in the files."""
        return self._total

    @cached_property
    def _total(self) -> int:
        return sum(map(self.stored, self.names()))

    def get(self, name: str) -> torch.Tensor:
        """One tensor in the dtype that it is stored in; quantised GGUF tensors as fp32.

        It may lie in the mapped file, so it is not to be written to. Raises ``BrokenModel`` when it is not finite.
        """
        tensor = self._read(name)
        # A sum is finite only if all of its terms are, and takes a fraction of the time and no memory.
        if tensor.is_floating_point() and not torch.isfinite(tensor.sum(dtype=torch.float32)):
            wrong = int((~torch.isfinite(tensor)).sum())
            if wrong:
                raise BrokenModel(f"{name} holds {wrong} values that are not finite")
        self._done += self.stored(name)
        if self._progress:
            self._progress(self._done, self._total)
        return tensor

    def check(self, where: Path) -> None:
        """Raises ``BrokenModel`` naming the tensors that are missing or of the wrong shape, by the headers alone."""
        present = set(self.names())
        missing, wrong = [], []
        for name, wanted in shapes(self.config).items():
            packed = f"{name.removesuffix('weight')}qweight"
            if name in present:
                if self.shape(name) != wanted:
                    wrong.append(f"{name} is {list(self.shape(name))} and not {list(wanted)}")
            elif packed not in present or self.config.quantization is None:
                missing.append(name)
            else:
                wrong += self._packed_wrong(packed, wanted, self.config.quantization)
        if missing:
            raise BrokenModel(f"{where} lacks {len(missing)} tensors: {', '.join(missing[:5])}")
        if wrong:
            raise BrokenModel(f"{where} does not fit its configuration: {'; '.join(wrong[:5])}")

    def _packed_wrong(self, name: str, wanted: tuple[int, ...], scheme: Quantization) -> Iterator[str]:
        rows, columns = wanted
        per = 32 // scheme.bits
        groups = -(-columns // scheme.group_size) if scheme.group_size > 0 else 1
        packed = (columns // per, rows) if scheme.method == "gptq" else (columns, rows // per)
        present = self.names()
        for part, shape in (("qweight", packed), ("scales", (groups, rows)), ("qzeros", (groups, rows // per))):
            whole = name.replace("qweight", part)
            if whole not in present:
                yield f"{whole} is missing"
            elif self.shape(whole) != shape:
                yield f"{whole} is {list(self.shape(whole))} and not {list(shape)}"


def open_weights(path: Path, config: ModelConfig, progress: Progress | None = None) -> Weights:
    """The weights of a folder or a GGUF file, checked by their headers. ``progress`` gets bytes done and bytes in all.

    Raises ``BrokenModel`` naming what is missing or of the wrong shape, ``UnsupportedModel`` for files of other kinds.
    """
    weights = (
        GGUFWeights(open_gguf(path), config, progress) if path.is_file() else FolderWeights(path, config, progress)
    )
    weights.check(path)
    return weights


class FolderWeights(Weights):
    """The safetensors files of a Hugging Face folder."""

    def __init__(self, folder: Path, config: ModelConfig, progress: Progress | None) -> None:
        super().__init__(config, progress)
        self._places = {}
        for file in _files(folder):
            try:
                opened: Any = safe_open(file, framework="pt")
                names = list(opened.keys())
            except (SafetensorError, OSError) as error:
                raise BrokenModel(f"{file} cannot be read: {error}") from error
            for stored in names:
                if name := _canonical(stored):
                    self._places[name] = (opened, stored)
        self._names = [name for name in self._places if name != "lm_head.weight" or not config.tied_embeddings]

    def names(self) -> list[str]:
        return self._names

    def scheme(self, name: str) -> str:
        opened, stored = self._places[name]
        return str(opened.get_slice(stored).get_dtype())

    def shape(self, name: str) -> tuple[int, ...]:
        opened, stored = self._places[name]
        return tuple(opened.get_slice(stored).get_shape())

    def stored(self, name: str) -> int:
        bits = int(re.sub(r"\D.*", "", self.scheme(name).lstrip("BFIU")) or 8)
        return prod(self.shape(name)) * bits // 8

    def _read(self, name: str) -> torch.Tensor:
        opened, stored = self._places[name]
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


class GGUFWeights(Weights):
    """A GGUF file's tensors. Llama's queries and keys are put back into the order that Hugging Face's rope wants."""

    def __init__(self, file: GGUFFile, config: ModelConfig, progress: Progress | None) -> None:
        super().__init__(config, progress)
        parts = _PARTS | (_GEMMA_NORMS if config.post_norms else _NORMS)
        self._places = {}
        for stored, place in file.tensors.items():
            base, _, kind = stored.rpartition(".")
            if base in _WHOLE:
                self._places[f"{_WHOLE[base]}.{kind}"] = place
            elif (found := re.fullmatch(r"blk\.(\d+)\.(\w+)", base)) and found[2] in parts:
                self._places[f"model.layers.{found[1]}.{parts[found[2]]}.{kind}"] = place

    def names(self) -> list[str]:
        return list(self._places)

    def scheme(self, name: str) -> str:
        return self._places[name].type

    def shape(self, name: str) -> tuple[int, ...]:
        return self._places[name].shape

    def stored(self, name: str) -> int:
        return self._places[name].nbytes

    def _read(self, name: str) -> torch.Tensor:
        place = self._places[name]
        raw = np.frombuffer(place.file.data, np.uint8, place.nbytes, place.offset)
        if place.type in DTYPES:
            tensor = torch.frombuffer(
                place.file.data, dtype=DTYPES[place.type], count=prod(place.shape), offset=place.offset
            )
        else:
            scheme = gguf.GGMLQuantizationType[place.type]
            try:
                plain = gguf.dequantize(raw.reshape(place.shape[0], -1), scheme)
            except NotImplementedError as error:
                raise UnsupportedModel(f"{name} is quantised as {place.type}, which cannot be read") from error
            tensor = torch.from_numpy(plain)
        tensor = tensor.view(place.shape)
        if self.config.architecture in ("llama", "mistral") and (".q_proj." in name or ".k_proj." in name):
            heads = self.config.heads if ".q_proj." in name else self.config.kv_heads
            # [heads, head_size / 2, 2, …] in the file: the two halves that turn together lie side by side.
            tensor = tensor.view(heads, -1, 2, *place.shape[1:]).transpose(1, 2).reshape(place.shape)
        return tensor
