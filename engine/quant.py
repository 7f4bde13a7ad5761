"""Linear layers in the precision that was asked for, each computed in the way that is fastest on this machine.

A ``Scheme`` is a precision with a way to compute for each number of rows: which one is fastest differs among CPUs and
between decode and prefill, so it is measured when a model is loaded. Some ways hold a copy of the weights of their own;
``Scheme.bytes_per_weight`` counts all of them, and ``Scheme.describe`` says what runs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field
from itertools import combinations
from math import ceil, inf
from typing import Literal

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.packed import GROUP, Grouped, Weight, to_int4, to_int8
from engine.ways import Dense, Float8, Half, Int4Weights, Int8Products, Int8Weights, Run, Unpacked, Way

Name = Literal["fp32", "bf16", "fp16", "int8", "int4", "fp8"]
PLAIN: dict[Name, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ROWS = (1, 8, 32, 256)
"""Numbers of rows that are measured, and how many rows at most (``UP_TO``) are computed as each of them."""
UP_TO = (1, 16, 96)
SAMPLE_WEIGHTS = 8_000_000
"""Weights that a measurement goes through before it comes to the same again: caches help it no more than a model."""
MOST_COPIES = 16
"""Of small weights."""
HOPELESS_S = 2.0
"""A way whose next pass would take longer is none: oneDNN has products that are written out for no CPU."""
CLEARLY = 1.25
"""How much faster other ways have to be than a precision's own."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A precision, with the way for each of ``ROWS``. ``dtype`` is what activations best have between the linears."""

    name: Name
    ways: tuple[Way, ...]
    group: int = GROUP
    replaced: dict[tuple[str, str], set[tuple[int, int]]] = field(default_factory=dict, compare=False)
    """By a way and the one that stands in for it: the shapes [N, K] of which it has weights that it cannot take."""

    @property
    def dtype(self) -> torch.dtype:
        return self.ways[0].dtype

    @property
    def bytes_per_weight(self) -> float:
        """Bytes that each weight of a linear takes, all copies of it together."""
        return sum(way.bytes_per_weight for way in dict.fromkeys(self.ways))

    def describe(self) -> str:
        """What runs, in words; once all weights are held, with the ways that stand in for others."""
        spans = zip(("1", *(f"{last + 1} on" for last in UP_TO)), self.ways, strict=True)
        kept = {way: rows for rows, way in reversed(list(spans))}
        ways = list(dict.fromkeys(self.ways))
        said = ", ".join(way.name + (f" (rows: {kept[way]})" if len(ways) > 1 else "") for way in ways)
        size = f"; {self.bytes_per_weight:g} bytes a weight" if len(ways) > 1 else ""
        stood_in = "".join(
            f"; {other} for some of {', '.join(f'{n}x{k}' for n, k in sorted(shapes)[:5])} instead of {way}"
            for (way, other), shapes in self.replaced.items()
        )
        return f"{self.name}: {said}{size}{stood_in}"

    def hold(self, weight: Tensor | Grouped) -> Weight:
        """The weight as this precision has it; packed int4 weights stay the numbers that they are."""
        if self.name == "int4":
            return weight if isinstance(weight, Grouped) else to_int4(weight, self.group)
        plain = weight.dense() if isinstance(weight, Grouped) else weight
        return to_int8(plain) if self.name == "int8" else plain


class Linear:
    """A weight [N, K] and a bias [N] or None: ``x`` [..., K], contiguous, to [..., N] in the dtype of ``x``."""

    def __init__(self, weight: Tensor | Grouped, bias: Tensor | None, scheme: Scheme) -> None:
        held = scheme.hold(weight)
        runs = {way: _held(way, held, scheme) for way in dict.fromkeys(scheme.ways)}
        self._steps = [(last, *runs[way]) for last, way in zip((*UP_TO, 1 << 62), scheme.ways, strict=True)]
        self._inputs = weight.shape[1]
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        rows = x if x.dim() == 2 else x.reshape(-1, self._inputs)
        count = len(rows)
        for last, run, dtype in self._steps:  # noqa: B007 - the last one takes what is left
            if count <= last:
                break
        result = run(rows if rows.dtype == dtype else rows.to(dtype))
        if dtype != x.dtype:
            result = result.to(x.dtype)
        if self._bias is not None:
            result += self._bias
        return result if x.dim() == 2 else result.view(*x.shape[:-1], -1)


def _held(way: Way, weight: Weight, scheme: Scheme) -> tuple[Run, torch.dtype]:
    """A way with its weight; where it cannot take that, one that takes all, which ``scheme`` remembers."""
    device = weight.device if isinstance(weight, Tensor) else weight.numbers.device
    try:
        run = way.hold(weight)
        run(torch.zeros(2, weight.shape[1], dtype=way.dtype, device=device))
    except RuntimeError:
        dtype = torch.float32 if device.type == "cpu" else way.dtype
        other = Dense(dtype) if isinstance(weight, Tensor) else Unpacked(dtype, scheme.bytes_per_weight)
        scheme.replaced.setdefault((way.name, other.name), set()).add((weight.shape[0], weight.shape[1]))
        return other.hold(weight), dtype
    return run, way.dtype


def linear(weight: Tensor | Grouped, bias: Tensor | None, scheme: Scheme) -> Linear:
    """A linear layer of ``weight`` [N, K] and ``bias`` [N]."""
    return Linear(weight, bias, scheme)


def plain(dtype: torch.dtype) -> Scheme:
    """Weights and products in ``dtype``, whatever is fastest."""
    name = next(name for name, kind in PLAIN.items() if kind == dtype)
    return Scheme(name, (Dense(dtype),) * len(ROWS))


def choose(
    name: Name, shapes: Listed[tuple[int, int]], device: torch.device, room: float | None = None, group: int = GROUP
) -> Scheme:
    """The scheme of a precision for linears of ``shapes`` [N, K] on this device, by a measurement of a second.

    The precision's own ways, unless others are clearly faster over the numbers of rows: so one machine chooses alike
    at each start. ``room`` is how many bytes a weight may take in all; where none fits, it is the smallest. Raises
    ``UnsupportedModel`` where the machine has no such precision.
    """
    own, others = _ways(name, device, group)
    first = Scheme(name, (own[0],) * len(ROWS), group)
    if len(own + others) == 1:
        return first
    samples = _samples(first, shapes)
    times: dict[Way, list[float]] = {}
    for way in own + others:
        smaller = [found[-1] for other, found in times.items() if other.bytes_per_weight <= way.bytes_per_weight]
        if found := _measure(way, samples, min(smaller, default=inf)):
            times[way] = found
    if not times:
        return first
    best = [min(found[index] for found in times.values()) for index in range(len(ROWS))]
    sets = [kept for count in (2, 1) for kept in combinations(times, count)]
    choices = []
    for kept in sorted(sets, key=lambda kept: sum(way in others for way in kept)):
        # The first of two where they hardly differ.
        order = {way: 1.0 if way is kept[0] else 1.1 for way in kept}
        chosen = tuple(min(kept, key=lambda way: times[way][index] * order[way]) for index in range(len(ROWS)))
        slowness = sum(times[way][index] / best[index] for index, way in enumerate(chosen))
        choices.append((slowness, Scheme(name, chosen, group)))
    limit = max(min(scheme.bytes_per_weight for _, scheme in choices), inf if room is None else room)
    slowest, picked = inf, choices[0][1]
    for slowness, scheme in choices:
        if scheme.bytes_per_weight <= limit and slowness * CLEARLY < slowest:
            slowest, picked = slowness, scheme
    return picked


def _ways(name: Name, device: torch.device, group: int) -> tuple[list[Way], list[Way]]:
    """A precision's own ways on a device, and others to compute it."""
    cuda = device.type == "cuda"
    if name == "fp8":
        if not cuda or torch.cuda.get_device_capability(device) < (8, 9):
            raise UnsupportedModel(f"this machine's {device.type} has no fp8; int8 takes as much memory")
        return [Float8()], []
    grouped = 0.5 + 8 / group  # scales and minima are fp32
    if cuda:
        dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
        return [Dense(PLAIN[name]) if name in PLAIN else Unpacked(dtype, 1 if name == "int8" else grouped)], []
    wide, half = Dense(torch.float32), Dense(torch.bfloat16)
    if name == "fp32":
        return [Half()], [wide]
    if name == "fp16":
        return [Half()], [Dense(torch.float16), wide]
    if name == "bf16":
        return [half], [Half(), wide]
    if name == "int8":
        return [Int8Weights(), Int8Products()], [Unpacked(torch.bfloat16, 1), half, wide]
    return [Int4Weights(0.5 + 4 / group)], [Unpacked(torch.bfloat16, grouped), half, wide]


def _samples(scheme: Scheme, shapes: Listed[tuple[int, int]]) -> list[Weight]:
    """Random weights of ``shapes``, as many of each; no two lie in the same memory."""
    total = sum(outputs * inputs for outputs, inputs in shapes)
    # Some of the outputs tell as much of a large model.
    part = min(SAMPLE_WEIGHTS / total, 1)
    counts = [outputs if part == 1 else 64 * ceil(outputs * part / 64) for outputs, _ in shapes]
    return [
        scheme.hold(torch.randn(count, inputs, dtype=torch.bfloat16).float())
        for _ in range(min(ceil(SAMPLE_WEIGHTS / total), MOST_COPIES))
        for count, (_, inputs) in zip(counts, shapes, strict=True)
    ]


def _measure(way: Way, samples: Listed[Weight], most_s: float = inf) -> list[float] | None:
    """Seconds that the samples take together, for each of ``ROWS``; None where the way does not work.

    Nor does one that is hopelessly slow, or takes longer for the fewest rows than ``most_s``, as a smaller way for all.
    """
    try:
        held = [(sample.shape[1], way.hold(sample)) for sample in samples]
        taken: list[float] = []
        for before, rows in zip((0, *ROWS), ROWS, strict=False):
            if before and taken[-1] * rows / before > HOPELESS_S:
                return None
            taken.append(_seconds(held, rows, way.dtype))
            if taken[0] > most_s:
                return None
    except RuntimeError:
        return None
    return taken


def _seconds(held: Listed[tuple[int, Run]], rows: int, dtype: torch.dtype) -> float:
    """The least time of three passes over all that is held, by its inputs; of the first alone when that takes long."""
    samples = {inputs: torch.randn(rows, inputs, dtype=dtype) for inputs, _ in held}
    passes: list[float] = []
    while len(passes) < 3 and sum(passes) < 0.05:
        started = time.perf_counter()
        for inputs, run in held:
            run(samples[inputs])
        passes.append(time.perf_counter() - started)
    return min(passes)
