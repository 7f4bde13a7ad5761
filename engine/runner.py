"""Runs the steps that the scheduler plans: a batch through the model, then the sampler."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.batch import Batch, assemble
from engine.errors import OutOfMemory, Poisoned, RequestFailed
from engine.graphs import DecodeGraphs, PieceGraphs, Pieces, cuda_capture
from engine.kv_cache import KVCache
from engine.parallel import Group
from engine.request import Plan, Result, Row
from engine.sampler import Choices, Sampler, Wanted

POOLED = 1024
"""Sequences whose hidden states are being summed: those that were cancelled meanwhile are among them, oldest first."""


class Model(Pieces, Protocol):
    """What a runner needs of a model; ``engine.models.llama.Decoder`` is one."""

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits [N, vocabulary] of hidden states [N, hidden]."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A step under way."""

    finish: Callable[[], list[Result]]

    def result(self) -> list[Result]:
        """One result a row, in the plan's order; waits for the device."""
        return self.finish()


class Runner:
    """A model with its cache and sampler. It follows plans one at a time."""

    def __init__(
        self, model: Model, cache: KVCache, sampler: Sampler, device: torch.device, group: Group | None = None
    ) -> None:
        self.model, self.cache, self.device = model, cache, device
        self._sampler = sampler
        self._group = group or Group()
        # Ranks exchange through the host, which a graph cannot hold.
        capture = cuda_capture(device) if self._group.size == 1 else None
        self._step = DecodeGraphs(PieceGraphs(model, capture), cache, capture)
        self._sums: OrderedDict[int, tuple[int, Tensor]] = OrderedDict()
        """Of sequences that pool, by id: positions read so far, and the sum of their hidden states [hidden]."""

    def start(self, plan: Plan) -> Pending:
        """Begin a step; raises ``OutOfMemory`` when it does not fit, as its ``result`` may: it can be planned smaller.

        Of several ranks one that fails leaves the others within the step: it raises torch's error, and the engine ends.
        On a CPU nothing runs beside the caller, so its work is done in ``result``.
        """
        self._group.lead(plan)
        if self.device.type == "cpu":
            return Pending(lambda: self._begin(plan)())
        return Pending(self._begin(plan))

    def _begin(self, plan: Plan) -> Callable[[], list[Result]]:
        with torch.inference_mode(), _memory(plan) if self._group.size == 1 else nullcontext():
            batch, hidden = self._hidden(plan)
            choices = self._choose(plan, batch, hidden)
            embedded = {
                row.sequence.id: self._pool(row, hidden[span.first : span.last])
                for row, span in zip(plan.rows, batch.spans, strict=True)
                if row.sequence.pools
            }
            # A prompt that is read in part: others may take over what it computed, so it has to be sound. A position
            # has read all before it, so the last one's hidden state tells of all.
            ends = hidden.index_select(0, batch.starts[1:] - 1).sum(1, dtype=torch.float32).isfinite()

        def finish() -> list[Result]:
            chosen = iter(choices.results() if choices else ())
            return [
                embedded[row.sequence.id]()
                if row.sequence.pools
                else next(chosen)
                if row.samples
                else Result(row.sequence, error=None if sound else _poisoned())
                for row, sound in zip(plan.rows, ends.tolist(), strict=True)
            ]

        return finish

    def follow(self) -> None:
        """Run the steps that rank 0 leads, until it ends."""
        for plan in self._group.follow():
            with torch.inference_mode():
                self._hidden(plan)

    def close(self) -> None:
        """End the ranks that follow."""
        self._group.end()

    def _hidden(self, plan: Plan) -> tuple[Batch, Tensor]:
        batch = assemble(plan, self.cache.block_size, self.device)
        return batch, self._step(batch)

    def _choose(self, plan: Plan, batch: Batch, hidden: Tensor) -> Choices | None:
        wanted = []
        first = 0
        for row in plan.rows:
            if row.samples and not row.sequence.pools:
                wanted.append(Wanted(row.sequence, first))
                first += 1 + len(row.sequence.drafts)
        if not wanted:
            return None
        rows = hidden if batch.wanted is None else hidden.index_select(0, batch.wanted)
        return self._sampler.start(self.model.logits(rows), wanted)

    def _pool(self, row: Row, hidden: Tensor) -> Callable[[], Result]:
        """Add a row's hidden states [n, hidden] to its sequence's; what tells the result once the device is done."""
        sequence, end = row.sequence, row.start + row.count
        read, total = self._sums.pop(sequence.id, (0, None))
        fresh = hidden.sum(0, dtype=torch.float32)
        if row.start and (total is None or read != row.start):
            lost = RequestFailed("what was read of this text so far is no longer there")
            return lambda: Result(sequence, error=lost)
        total = fresh if not row.start or total is None else total + fresh
        if not row.samples:
            self._sums[sequence.id] = (end, total)
            while len(self._sums) > POOLED:
                self._sums.popitem(last=False)
            return lambda: Result(sequence)

        def mean() -> Result:
            values = tuple((total / end).tolist())
            if not all(value - value == 0 for value in values):  # neither infinite nor no number
                return Result(sequence, error=_poisoned())
            return Result(sequence, embedding=values)

        return mean


@contextmanager
def _memory(plan: Plan) -> Iterator[None]:
    """Make of torch's ways to say that memory is full the one that the engine knows."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise _full(plan) from error
    except RuntimeError as error:
        if "not enough memory" in str(error) or "can't allocate memory" in str(error):
            raise _full(plan) from error
        raise


def _full(plan: Plan) -> OutOfMemory:
    rows = ", ".join(f"{row.count} of sequence {row.sequence.id}" for row in plan.rows)
    return OutOfMemory(f"no memory for a step of {plan.tokens} positions: {rows}")


def _poisoned() -> Poisoned:
    return Poisoned("the model's numbers are no longer finite for this request")
