"""A model in memory: the precision that fits, the cache that fits beside it, and what both really are."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import get_args

import psutil
import torch

from engine.config import ModelConfig
from engine.errors import UnsupportedModel
from engine.kv_cache import KVCache, position_bytes
from engine.loader import open_weights, shapes
from engine.models.parts import Parts
from engine.models.registry import build
from engine.options import Options
from engine.parallel import Group
from engine.quant import Name, Scheme, choose
from engine.runner import Runner
from engine.sampler import Sampler

BLOCK = 16
"""Positions of a block."""
SPARE_BYTES = 500 << 20
"""What the program itself takes, and a step's activations."""
LEAST_BYTES: dict[Name, float] = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1, "int4": 0.75, "fp8": 1}
"""Of a weight; a scheme may take more where there is room, up to ``MOST_BYTES``, when that is faster."""
MOST_BYTES = 4.0
KV = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}
CPU_SHARE = 0.25
"""Of the memory that is free: what a cache on a CPU takes at most where no size is asked for."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A runner, and the truth about it. ``scheme`` says how its linears are computed."""

    runner: Runner
    precision: Name
    scheme: str
    kv_precision: str
    blocks: int
    block_size: int
    threads: int


def open_runner(
    path: Path,
    config: ModelConfig,
    options: Options,
    context: int,
    sampler: Sampler,
    progress: Callable[[int, int], None],
    group: Group | None = None,
) -> Loaded:
    """The model at ``path`` in memory, with a cache for at least one sequence of ``context`` tokens.

    ``auto`` is the file's own precision when that is quantised, else 16 bit, else int8, else int4: the first that fits.
    All ranks of a group have the same but for their shares: rank 0 decides what is measured. Raises ``ModelError``: the
    model is broken, or neither it nor the machine has what is asked for; ``EngineStopped`` when another rank has ended.
    """
    group = group or Group()
    device = device_of(options, group)
    torch.set_num_threads(options.threads or max(_cores() // group.size, 1))
    weights = open_weights(path, config, progress)
    embedding = config.vocabulary * config.hidden
    count = sum(prod(shape) for name, shape in shapes(config).items() if ".layers." in name and len(shape) == 2)
    count = count // group.size + embedding * (2 if config.tied_embeddings else 1)
    free = group.agree(_free(device, group), min)
    kept = SPARE_BYTES + 2 * embedding + context * position_bytes(config, torch.bfloat16, group)
    room = (free - kept) / count
    name = _precision(options.precision, config, room)
    most = min(max(room, LEAST_BYTES[name]), MOST_BYTES)

    def fastest(_: object) -> tuple[Scheme, Scheme]:
        scheme = choose(name, _products(config, group), device, most)
        if name != "int4":
            return scheme, scheme
        # Nearly all that int4 does to an answer it would do in the head: files in int4 have theirs in more bits too.
        return scheme, choose("int8", [(config.vocabulary, config.hidden)], device, most)

    scheme, head = group.agree(None, fastest)
    dtype = scheme.dtype
    model = build(Parts(config, weights, scheme, dtype, device, group, head))
    cached = dtype if options.kv_precision == "auto" else KV.get(options.kv_precision)
    if cached is None:
        raise UnsupportedModel(f"no cache in {options.kv_precision}; {', '.join(KV)} are there")
    if cached == KV["fp8"] and device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        raise UnsupportedModel("this GPU has no fp8; a cache in int8 takes as much memory")
    each = BLOCK * position_bytes(config, cached, group)
    free = group.agree(_free(device, group), min)  # beside the weights of all ranks
    share = CPU_SHARE if device.type == "cpu" else 0.9
    blocks = options.blocks or _blocks(options.max_sequences, context, int(free * share) // each)
    runner = Runner(model, KVCache(config, blocks, BLOCK, cached, device, group), sampler, device, group)
    kind = next(kind for kind, each in KV.items() if each == cached)
    said = scheme.describe() + ("" if head is scheme else f"; the head in {head.describe()}")
    return Loaded(runner, name, said, kind, blocks, BLOCK, torch.get_num_threads())


def device_of(options: Options, group: Group) -> torch.device:
    """A rank's device. Raises ``UnsupportedModel`` where not each has a GPU of its own, or all share the CPU."""
    name = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if group.size == 1 or name == "cpu":
        return torch.device(name)
    if name != "cuda":
        raise UnsupportedModel(f"{group.size} ranks do not run on {name}; on cuda or cpu they do")
    if group.size > torch.cuda.device_count():
        raise UnsupportedModel(f"{group.size} ranks need a GPU each; there are {torch.cuda.device_count()}")
    return torch.device(name, group.rank)


def _products(config: ModelConfig, group: Group) -> list[tuple[int, int]]:
    """Shapes [N, K] of one layer's linears as a rank computes them, those of the same input as one."""
    queries, keys = (count * config.head_size // group.size for count in (config.heads, config.kv_heads))
    hidden, wide = config.hidden, config.intermediate // group.size
    return [(queries + 2 * keys, hidden), (hidden, queries), (2 * wide, hidden), (hidden, wide)]


def _free(device: torch.device, group: Group) -> int:
    """Bytes that a rank can have on its device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available // group.size


def _precision(asked: str, config: ModelConfig, room: float) -> Name:
    """``room`` is in bytes a weight."""
    if asked != "auto":
        return next(name for name in get_args(Name) if name == asked)
    facts = config.quantization
    own = "" if facts is None else facts.name.lower()
    half: Name = "fp16" if config.dtype == "float16" and not own else "bf16"
    candidates: tuple[Name, ...] = (half, "int8", "int4")
    if "4" in own or own.startswith(("q2", "q3")):
        candidates = ("int4",)
    elif "8" in own:
        candidates = ("int8", "int4")
    for name in candidates:
        if LEAST_BYTES[name] <= room:
            return name
    raise UnsupportedModel(f"not even in {candidates[-1]} does the model fit in memory, with a cache for its context")


def _blocks(sequences: int, context: int, fit: int) -> int:
    """As many as all sequences may fill, or as ``fit``; enough for one in any case."""
    one = -(-context // BLOCK)
    return max(one, min(sequences * one, fit))


def _cores() -> int:
    """Physical cores that this process may use; macOS has no word for the latter."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(psutil.cpu_count(logical=False) or usable, usable)
