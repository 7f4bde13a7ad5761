"""Padded, replayed decode steps give what the model gives; here the capture only keeps the step, to run it again."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from engine.batch import Batch
from engine.graphs import SIZES, WIDTH, DecodeGraphs, Step, cuda_capture
from engine.kernels import cache, decode
from engine.kv_cache import KVCache

HEADS, SIZE, BLOCKS, BLOCK = 2, 8, 30, 4


class Toy:
    """One layer of attention over numbers made of tokens and positions; ``seen`` are the sizes of its steps."""

    def __init__(self) -> None:
        self.keys, self.values = (torch.zeros(BLOCKS, BLOCK, HEADS, SIZE) for _ in range(2))
        self.seen: list[int] = []

    def __call__(self, batch: Batch, _: KVCache) -> Tensor:
        """[T, HEADS * SIZE]."""
        self.seen.append(len(batch.tokens))
        new = torch.sin(
            batch.tokens[:, None, None] + batch.positions[:, None, None] * torch.ones(HEADS, SIZE).cumsum(1)
        )
        cache.reference(new, new.flip(2), self.keys, self.values, batch.slots)
        found = decode.reference(new, self.keys, self.values, batch.tables, batch.lengths, 0.5)
        return found.flatten(1)


class Captures:
    """Steps that were captured; ``full`` makes the next one fail for want of memory."""

    def __init__(self) -> None:
        self.count = 0
        self.full = False

    def __call__(self, step: Step) -> Step:
        if self.full:
            raise torch.OutOfMemoryError("full")
        self.count += 1
        return step


def batch(count: int, at: int, longest: int = 1) -> Batch:
    """``count`` sequences, each of one new position ``at`` in blocks of its own."""
    tables = torch.arange(1, 1 + count * 3, dtype=torch.int32).view(count, 3)
    positions = torch.full((count,), at)
    slots = tables[:, at // BLOCK].long() * BLOCK + at % BLOCK
    lengths = torch.full((count,), at + 1, dtype=torch.int32)
    starts = torch.arange(count + 1, dtype=torch.int32)
    return Batch(torch.arange(count) + 7 * at, positions, slots, starts, lengths, tables, None, (), longest)


def graphs(toy: Toy, captures: Captures | None) -> DecodeGraphs:
    return DecodeGraphs(toy, cast(Any, None), captures)


def test_padded_steps_give_what_steps_of_their_size_give() -> None:
    plain, padded, captures = Toy(), Toy(), Captures()
    step = graphs(padded, captures)
    for at, count in enumerate((3, 4, 5, 3, 1, 4)):
        right = plain(batch(count, at), cast(Any, None))
        torch.testing.assert_close(step(batch(count, at)), right)
    assert captures.count == 3  # of 4, 8 and 1 sequences
    assert set(padded.seen) == {1, 4, 8}
    torch.testing.assert_close(padded.keys, plain.keys)  # padding was written nowhere


def test_a_wider_table_gets_a_graph_of_its_own() -> None:
    captures = Captures()
    step = graphs(Toy(), captures)
    one = batch(1, 0)
    step(one)
    wide = torch.zeros((1, WIDTH + 1), dtype=torch.int32)
    wide[:, :3] = one.tables
    found = step(Batch(one.tokens, one.positions, one.slots, one.starts, one.lengths, wide, None, (), 1))
    torch.testing.assert_close(found, Toy()(one, cast(Any, None)))
    assert captures.count == 2


@pytest.mark.parametrize("longest", [2, 512])
def test_steps_that_read_prompts_or_verify_drafts_run_as_they_are(longest: int) -> None:
    captures = Captures()
    graphs(Toy(), captures)(batch(2, 0, longest))
    assert captures.count == 0


def test_no_graph_is_captured_where_there_is_no_gpu_nor_for_more_sequences_than_the_largest() -> None:
    assert cuda_capture(torch.device("cpu")) is None
    toy, captures = Toy(), Captures()
    graphs(toy, None)(batch(3, 0))
    count = SIZES[-1] + 1
    many = batch(1, 0)
    several = [part.expand(count, *part.shape[1:]) for part in (many.tokens, many.positions, many.slots)]
    ends = torch.arange(count + 1)
    graphs(toy, captures)(Batch(*several, ends, many.lengths.expand(count), many.tables.expand(count, 3), None, (), 1))
    assert toy.seen == [3, count]
    assert captures.count == 0


def test_without_memory_for_a_graph_steps_go_on_without() -> None:
    toy, captures = Toy(), Captures()
    captures.full = True
    step = graphs(toy, captures)
    torch.testing.assert_close(step(batch(3, 0)), Toy()(batch(3, 0), cast(Any, None)))
    captures.full = False
    step(batch(3, 1))
    assert captures.count == 0
