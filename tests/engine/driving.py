"""Drives a runner without a scheduler: plans as a test wants them, over blocks as a test wants them."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.config import read_config
from engine.kv_cache import KVCache
from engine.loader import open_weights
from engine.models.parts import Parts
from engine.models.registry import build
from engine.parallel import Group
from engine.quant import Scheme, plain
from engine.request import Plan, Result, Row, Sampling, Sequence
from engine.runner import Runner
from engine.sampler import Sampler

CPU = torch.device("cpu")
BLOCK = 16


def runner(
    path: Path,
    dtype: torch.dtype = torch.float32,
    group: Group | None = None,
    blocks: int = 96,
    scheme: Scheme | None = None,
) -> Runner:
    """A runner of the model at ``path`` with activations and cache in ``dtype``, and linears too, or by ``scheme``."""
    config, ranks = read_config(path), group or Group()
    model = build(Parts(config, open_weights(path, config), scheme or plain(dtype), dtype, CPU, ranks))
    return Runner(model, KVCache(config, blocks, BLOCK, dtype, CPU, ranks), Sampler(()), CPU, ranks)


def sequence(number: int, prompt: list[int], **sampling: object) -> Sequence:
    """A request for greedy tokens."""
    settings = Sampling(**{"max_tokens": 64, "temperature": 0.0, **sampling})  # type: ignore[arg-type]
    return Sequence(number, len(prompt), list(prompt), settings)


def own_blocks(sequences: list[Sequence], room: int, scattered: bool = False, size: int = BLOCK) -> None:
    """Give each sequence blocks for its prompt and ``room`` more tokens: side by side, or taken from both ends."""
    counts = [-(-(len(each.tokens) + room) // size) for each in sequences]
    if not scattered:
        first = 0
        for each, count in zip(sequences, counts, strict=True):
            each.blocks = list(range(first, first + count))
            first += count
        return
    free = list(range(sum(counts)))
    for each, count in zip(sequences, counts, strict=True):
        each.blocks = [free.pop(0 if index % 2 else -1) for index in range(count)]


def row(each: Sequence, most: int) -> Row:
    """The next at most ``most`` positions of a sequence."""
    whole = len(each.tokens) + len(each.drafts)
    count = min(most, whole - each.computed)
    return Row(each, each.computed, count, each.computed + count == whole)


def step(engine: Runner, sequences: list[Sequence], most: int = 10_000) -> list[Result]:
    """One step of all sequences, at most ``most`` positions each; what it brought is accepted."""
    plan = Plan(tuple(row(each, most) for each in sequences))
    results = engine.start(plan).result()
    for planned, result in zip(plan.rows, results, strict=True):
        each = planned.sequence
        assert result.error is None
        if planned.samples:
            each.computed = len(each.tokens) + len(result.tokens) - 1
            each.tokens += result.tokens
            each.drafts = []
        else:
            each.computed += planned.count
    return results


def generate(engine: Runner, sequences: list[Sequence], tokens: int, most: int = 10_000) -> list[list[int]]:
    """All sequences together until each has ``tokens`` more, in steps of at most ``most`` positions each."""
    while waiting := [each for each in sequences if each.generated < tokens]:
        step(engine, waiting, most)
    return [list(each.output)[:tokens] for each in sequences]
