"""Decode steps as CUDA graphs: one launch instead of hundreds, which is most of a small model's step.

A graph has fixed shapes, so a batch is padded to the next size and table width that there is a graph for. Graphs are
captured when a size is first needed. Steps that read prompts or verify drafts, and all on a CPU, run as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from engine.batch import Batch
from engine.kernels.launch import power_of_two
from engine.kv_cache import KVCache

LOG = logging.getLogger(__name__)
SIZES = (1, 2, 4, *range(8, 64, 8), *range(64, 257, 16))
"""Numbers of sequences that graphs are captured for."""
WIDTH = 64
"""The least table width, in blocks; wider ones are powers of two."""

Step = Callable[[], Tensor]


class DecodeGraphs:
    """A model's hidden states [T, hidden] of a batch, by a graph where there can be one.

    What is returned stays as it is until the next call. ``capture`` makes of a step one that is replayed; None where
    steps are not captured (a CPU; ranks whose exchange goes through the host).
    """

    def __init__(
        self,
        model: Callable[[Batch, KVCache], Tensor],
        cache: KVCache,
        capture: Callable[[Step], Step] | None,
    ) -> None:
        self._model, self._cache, self._capture = model, cache, capture
        self._graphs: dict[tuple[int, int], tuple[Batch, Step]] = {}

    def __call__(self, batch: Batch) -> Tensor:
        """The hidden states of ``batch``. Its keys and values are written to the cache."""
        count = len(batch.lengths)
        if self._capture is None or batch.longest > 1 or count > SIZES[-1]:
            return self._model(batch, self._cache)
        size = next(size for size in SIZES if size >= count)
        shape = size, max(power_of_two(batch.tables.shape[1]), WIDTH)
        found = self._graphs.get(shape)
        if found is not None:
            _fill(found[0], batch)
            return found[1]()[:count]
        static = _empty(batch, *shape)
        _fill(static, batch)
        try:
            step = self._capture(lambda: self._model(static, self._cache))
        except torch.OutOfMemoryError:
            LOG.warning("no memory for a CUDA graph of %d sequences: decode steps run without graphs from now on", size)
            self._capture = None
            return self._model(batch, self._cache)
        self._graphs[shape] = static, step
        return step()[:count]


def cuda_capture(device: torch.device) -> Callable[[Step], Step] | None:
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

    def zeros(*shape: int, like: Tensor) -> Tensor:
        return torch.zeros(shape, dtype=like.dtype, device=like.device)

    starts = torch.arange(size + 1, dtype=batch.starts.dtype, device=batch.starts.device)
    return Batch(
        zeros(size, like=batch.tokens),
        zeros(size, like=batch.positions),
        zeros(size, like=batch.slots),
        starts,
        zeros(size, like=batch.lengths),
        zeros(size, width, like=batch.tables),
        None,
        (),
        1,
    )


def _fill(static: Batch, batch: Batch) -> None:
    """Put ``batch`` in ``static``; what is behind it is padding: of no length, and written to no slot."""
    count, width = batch.tables.shape
    for name, rest in (("tokens", 0), ("positions", 0), ("slots", -1), ("lengths", 0)):
        to: Tensor = getattr(static, name)
        to[:count] = getattr(batch, name)
        to[count:] = rest
    static.tables[:count, :width] = batch.tables
