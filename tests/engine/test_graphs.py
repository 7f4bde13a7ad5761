"""Padded, replayed decode steps give what the model gives; here the capture only keeps the step, to run it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from engine.batch import Batch, assemble
from engine.graphs import BUCKETS, SIZES, WIDTH, DecodeGraphs, PieceGraphs, Step, cuda_capture
from engine.kernels import cache, decode
from engine.kernels.paged import Past
from engine.kv_cache import KVCache
from engine.request import Plan
from engine.runner import Runner
from tests.engine.conftest import ARCHITECTURES
from tests.engine.driving import CPU, generate, own_blocks, row, runner, sequence

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
        found = decode.reference(new, Past(self.keys, self.values, batch.tables, batch.lengths, 0.5))
        return found.flatten(1)


class Captures:
    """Steps that were captured, each run before as a GPU's are; none beyond ``room``, for want of memory."""

    def __init__(self, room: int = 1000) -> None:
        self.count = 0
        self.room = room

    def __call__(self, step: Step) -> Step:
        step()
        if self.count == self.room:
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
    captures = Captures(room=0)
    step = graphs(Toy(), captures)
    torch.testing.assert_close(step(batch(3, 0)), Toy()(batch(3, 0), cast(Any, None)))
    captures.room = 1
    step(batch(3, 1))
    assert captures.count == 0


PROMPTS = (list(range(3, 60)), list(range(100, 105)), [7], list(range(200, 290)))


def in_pieces(path: Path, captures: Captures) -> Runner:
    engine = runner(path)
    engine._step = DecodeGraphs(PieceGraphs(engine.model, captures), engine.cache, None)
    return engine


def said(engine: Runner, most: int) -> list[list[int]]:
    """What follows each prompt, read in chunks of ``most`` positions beside other sequences' decode."""
    sequences = [sequence(number, prompt) for number, prompt in enumerate(PROMPTS)]
    own_blocks(sequences, 20, scattered=True)
    return generate(engine, sequences, 12, most)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_in_pieces_says_what_it_says_in_one(tiny: Callable[[str], Path], architecture: str) -> None:
    captures = Captures()
    engine = in_pieces(tiny(architecture), captures)
    layers = len(engine.cache.layers)
    for most in (20, 1000, 20):
        assert said(engine, most) == said(runner(tiny(architecture)), most)
    assert captures.count % (layers + 1) == 0
    assert captures.count <= 4 * (layers + 1)  # of up to 32, 64, 128 and 256 positions, each once


def test_what_padding_holds_reaches_no_other_row(tiny: Callable[[str], Path]) -> None:
    engine = in_pieces(tiny("llama"), Captures())
    engine.model._embedding[500] = float("nan")  # type: ignore[attr-defined]
    bad = sequence(0, [3, 4, *[500] * 25])
    own_blocks([bad], 1)
    assert engine.start(Plan((row(bad, 100),))).result()[0].error
    assert said(engine, 20) == said(runner(tiny("llama")), 20)


def test_larger_steps_and_decode_steps_are_not_run_in_pieces(tiny: Callable[[str], Path]) -> None:
    captures = Captures()
    engine = runner(tiny("llama"), blocks=2 * BUCKETS[-1])
    pieces = PieceGraphs(engine.model, captures)
    many = [sequence(number, list(range(3, 500))) for number in range(3)]
    one = sequence(3, [5])
    own_blocks([*many, one], 1)
    for each in (many, [one]):
        pieces(assemble(Plan(tuple(row(s, 500) for s in each)), engine.cache.block_size, CPU), engine.cache)
    assert captures.count == 0


@pytest.mark.parametrize("room", [0, 2, 5])
def test_without_memory_for_a_piece_steps_go_on_in_one(tiny: Callable[[str], Path], room: int) -> None:
    captures = Captures(room)
    engine = in_pieces(tiny("llama"), captures)
    assert said(engine, 20) == said(runner(tiny("llama")), 20)
    captures.room = 100
    assert said(engine, 1000) == said(runner(tiny("llama")), 1000)
    assert captures.count == room
