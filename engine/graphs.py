"""Steps as CUDA graphs: one launch instead of hundreds, which is most of a small model's step.

A graph has fixed shapes, so a batch is padded to the next size that there are graphs for; they are captured when a size
is first needed. Decode steps are one graph each. Steps that read prompts or verify drafts are one between every two
attentions, which run as they are, since what they do follows from the sequences' lengths. On a CPU all runs as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from engine.batch import Batch
from engine.kernels.launch import power_of_two
from engine.kv_cache import KVCache

LOG = logging.getLogger(__name__)
SIZES = (1, 2, 4, *range(8, 64, 8), *range(64, 257, 16))
"""Numbers of sequences that graphs of decode steps are captured for."""
WIDTH = 64
"""The least table width, in blocks; wider ones are powers of two."""
BUCKETS = (32, 64, 128, 256, 512, 768, 1024)
"""Numbers of positions that graphs of other steps are captured for: in larger ones launches are a small part."""

Step = Callable[[], Tensor]
Capture = Callable[[Step], Step]
"""Makes of a step one that is replayed, after running it some times. Raises ``RuntimeError`` where it cannot."""


class Pieces(Protocol):
    """A model that can be run in pieces; ``engine.models.llama.Decoder`` is one."""

    def __call__(self, batch: Batch, cache: KVCache) -> Tensor:
        """The hidden states [T, hidden] of a batch."""

    def piece(self, layer: int, batch: Batch, found: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
        """What lies between the attentions of ``layer`` - 1 and ``layer``: what the next takes, and the residual."""

    def attend(self, layer: int, qkv: Tensor, batch: Batch, cache: KVCache) -> Tensor:
        """What the attention of ``layer`` finds, [T, heads * head_size]."""


class DecodeGraphs:
    """A model's hidden states [T, hidden] of a batch, by a graph where it is a decode step of a size that has one.

    What is returned stays as it is until the next call. ``capture`` is None where nothing is captured (a CPU; ranks
    whose exchange goes through the host).
    """

    def __init__(self, model: Callable[[Batch, KVCache], Tensor], cache: KVCache, capture: Capture | None) -> None:
        self._model, self._cache, self._capture = model, cache, capture
        self._graphs: dict[tuple[int, int], tuple[Batch, Step]] = {}

    def __call__(self, batch: Batch) -> Tensor:
        """The hidden states of ``batch``. Its keys and values are written to the cache."""
        count = len(batch.lengths)
        if self._capture is None or batch.longest > 1 or count > SIZES[-1]:
            return self._model(batch, self._cache)
        size = next(size for size in SIZES if size >= count)
        shape = size, max(power_of_two(batch.tables.shape[1]), WIDTH)
        static, step = self._graphs.get(shape) or (_empty(batch, *shape), None)
        for name, rest in (("tokens", 0), ("positions", 0), ("slots", -1), ("lengths", 0)):
            _pad(getattr(static, name), getattr(batch, name), rest)
        static.tables[:count, : batch.tables.shape[1]] = batch.tables
        if step is None:
            step = _captured(self._capture, lambda: self._model(static, self._cache), f"{size} sequences")
            if step is None:
                self._capture = None
                self._graphs.clear()
                return self._model(batch, self._cache)
            self._graphs[shape] = static, step
        return step()[:count]


@dataclass(frozen=True, slots=True)
class _Buffers:
    """What pieces and attentions hand each other, each with room for the largest bucket, for all graphs the same."""

    qkv: Tensor
    residuals: tuple[Tensor, Tensor]
    """Pieces read one and write the other, by turns, so that one that runs again finds what it found before."""
    found: Tensor


class PieceGraphs:
    """A model as it is called, whose steps of several positions a sequence are run by graphs between attentions.

    What is returned stays as it is until the next call.
    """

    def __init__(self, model: Pieces, capture: Capture | None) -> None:
        self._model, self._capture = model, capture
        self._buffers: _Buffers | None = None
        self._graphs: dict[int, tuple[Batch, list[Step]]] = {}

    def __call__(self, batch: Batch, cache: KVCache) -> Tensor:
        """The hidden states [T, hidden] of ``batch``. Its keys and values are written to ``cache``."""
        count = len(batch.tokens)
        if self._capture is None or batch.longest == 1 or count > BUCKETS[-1]:
            return self._model(batch, cache)
        size = next(size for size in BUCKETS if size >= count)
        buffers = self._buffers = self._buffers or self._room(batch, cache)
        static, steps = self._graphs.setdefault(size, (_empty(batch, size, 0), []))
        _pad(static.tokens, batch.tokens)
        _pad(static.positions, batch.positions)
        for layer in range(len(cache.layers) + 1):
            if layer == len(steps):
                step = _captured(self._capture, partial(self._piece, layer, static, buffers), f"{size} positions")
                if step is None:
                    self._capture = self._buffers = None
                    self._graphs.clear()
                    return self._model(batch, cache)
                steps.append(step)
            out = steps[layer]()
            if layer < len(cache.layers):
                buffers.found[:count] = self._model.attend(layer, buffers.qkv[:count], batch, cache)
        return out[:count]

    def _piece(self, layer: int, static: Batch, buffers: _Buffers) -> Tensor:
        size = len(static.tokens)
        before, after = (buffers.residuals[(layer + turn) % 2][:size] for turn in (0, 1))
        *handed, hidden = self._model.piece(layer, static, buffers.found[:size], before)
        for qkv in handed:  # none behind the last layer
            buffers.qkv[:size] = qkv
        return after.copy_(hidden)

    def _room(self, batch: Batch, cache: KVCache) -> _Buffers:
        """Of the shapes that the first layer has."""
        nothing = torch.empty(0)
        qkv, residual = self._model.piece(0, batch, nothing, nothing)
        found = self._model.attend(0, qkv, batch, cache)
        qkv, residual, other, found = (
            part.new_zeros((BUCKETS[-1], *part.shape[1:])) for part in (qkv, residual, residual, found)
        )
        return _Buffers(qkv, (residual, other), found)


def _captured(capture: Capture, step: Step, what: str) -> Step | None:
    """The step to replay; None, with a warning, where it cannot be captured: there may be no memory for it."""
    try:
        return capture(step)
    except RuntimeError as error:
        LOG.warning("no CUDA graph for %s, such steps run without graphs from now on: %s", what, error)
        return None


def cuda_capture(device: torch.device) -> Capture | None:
    """How steps on ``device`` are captured, in one pool of memory; None where they cannot be."""
    if device.type != "cuda":
        return None
    pool = torch.cuda.graph_pool_handle()

    def capture(step: Step) -> Step:
        # Kernels are compiled, and ways chosen by measurement, before: neither can happen while a graph is captured.
        aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside):
            step()
            step()
        torch.cuda.current_stream(device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            out = step()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay

    return capture


def _empty(batch: Batch, size: int, width: int) -> Batch:
    """A batch of ``size`` sequences that hold nothing yet, with one new position each."""

    tokens, positions, slots, lengths = (
        part.new_zeros(size) for part in (batch.tokens, batch.positions, batch.slots, batch.lengths)
    )
    starts = torch.arange(size + 1, dtype=batch.starts.dtype, device=batch.starts.device)
    tables = batch.tables.new_zeros((size, width))
    return Batch(tokens, positions, slots, starts, lengths, tables, None, (), 1)


def _pad(static: Tensor, new: Tensor, rest: int = 0) -> None:
    """Put ``new`` in ``static``, and ``rest`` behind it."""
    static[: len(new)] = new
    static[len(new) :] = rest
