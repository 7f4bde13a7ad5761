"""The cache's blocks: shared where two sequences begin alike, and never lost or given to two."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from toy_runner import sequence

from engine.block_manager import BlockManager
from engine.request import Sampling, Sequence


def compute(blocks: BlockManager, of: Sequence) -> None:
    of.computed = len(of.tokens)
    blocks.keep(of)


def begun(blocks: BlockManager, number: int, tokens: list[int], **more: object) -> Sequence:
    of = sequence(number, tokens, **more)
    assert blocks.begin(of)
    return of


def test_a_second_sequence_takes_the_full_blocks_of_a_prompt_that_begins_alike() -> None:
    blocks = BlockManager(8, 4)
    first = begun(blocks, 1, list(range(10)))
    compute(blocks, first)
    second = begun(blocks, 2, [*range(8), 99, 98])
    assert second.blocks[:2] == first.blocks[:2]
    assert second.blocks[2] != first.blocks[2]
    assert (second.computed, second.cached) == (8, 8)
    assert (blocks.asked, blocks.found) == (20, 8)
    blocks.check([first, second])


def test_the_last_token_of_a_prompt_is_computed_even_when_all_of_it_is_known() -> None:
    blocks = BlockManager(8, 4)
    compute(blocks, begun(blocks, 1, list(range(8))))
    assert begun(blocks, 2, list(range(8))).computed == 4


def test_equal_tokens_behind_different_ones_are_not_shared() -> None:
    blocks = BlockManager(8, 2)
    compute(blocks, begun(blocks, 1, [1, 2, 5, 6, 7]))
    assert begun(blocks, 2, [3, 4, 5, 6, 7]).computed == 0


def test_blocks_that_are_not_computed_yet_are_not_found() -> None:
    blocks = BlockManager(8, 2)
    begun(blocks, 1, [1, 2, 3, 4, 5])
    assert begun(blocks, 2, [1, 2, 3, 4, 5]).computed == 0


def test_what_another_has_computed_since_is_taken_over() -> None:
    blocks = BlockManager(9, 2)
    first, second = begun(blocks, 1, [1, 2, 3, 4, 5]), begun(blocks, 2, [1, 2, 3, 4, 6])
    assert blocks.catch_up(first) == blocks.catch_up(second) is not None
    free = blocks.free
    compute(blocks, first)
    assert blocks.catch_up(second) is None  # its last token is its own
    assert second.blocks[:2] == first.blocks[:2]
    assert (second.computed, second.cached) == (4, 4)
    assert blocks.free == free + 2
    blocks.check([first, second])


def test_an_embedding_finds_nothing_and_leaves_nothing() -> None:
    blocks = BlockManager(10, 2)
    compute(blocks, begun(blocks, 1, [1, 2, 3, 4, 5]))
    assert begun(blocks, 2, [1, 2, 3, 4, 5], pools=True).computed == 0
    compute(blocks, begun(blocks, 3, [7, 7, 7], pools=True))
    assert begun(blocks, 4, [7, 7, 7]).computed == 0


def test_a_sequence_that_gives_its_blocks_back_has_computed_nothing_and_leaves_nothing_behind() -> None:
    blocks = BlockManager(8, 2)
    first = begun(blocks, 1, [1, 2, 3, 4, 5])
    compute(blocks, first)
    blocks.release(first)
    assert (first.blocks, first.computed, blocks.free) == ([], 0, 8)
    assert not blocks._chains
    blocks.check([])


def test_without_a_prefix_cache_nothing_is_found() -> None:
    blocks = BlockManager(8, 2, prefix_cache=False)
    compute(blocks, begun(blocks, 1, [1, 2, 3, 4, 5]))
    assert begun(blocks, 2, [1, 2, 3, 4, 5]).computed == 0


@pytest.mark.parametrize(("asked", "found"), [([1, 1, 2, 2, 8], 2), ([3, 3, 4, 4, 8], 4)])
def test_the_least_recently_used_is_given_up_first_and_the_end_of_a_prompt_before_its_beginning(
    asked: list[int], found: int
) -> None:
    blocks = BlockManager(5, 2)
    for number, tokens in enumerate(([1, 1, 2, 2], [3, 3, 4, 4])):
        of = begun(blocks, number, tokens)
        compute(blocks, of)
        blocks.release(of)
    blocks.check([])
    nine = begun(blocks, 5, [9, 9, 9, 9])  # takes the unused block, and one that was kept
    blocks.release(nine)
    assert begun(blocks, 6, asked).computed == found


def test_a_sequence_that_does_not_fit_changes_nothing() -> None:
    blocks = BlockManager(4, 2)
    first = begun(blocks, 1, [1, 2, 3, 4, 5])
    compute(blocks, first)
    second = sequence(2, [1, 2, 3, 4, 6, 7, 8])
    assert not blocks.begin(second)
    assert second.blocks == []
    assert not blocks.begin(sequence(3, [1, 2, 3]), spare=1)
    assert not blocks.extend(first, 9)
    assert blocks.begin(sequence(3, [1, 2, 3]))
    assert blocks.free == 0


def test_a_sequence_grows_without_a_gap_beside_another_that_grows() -> None:
    blocks = BlockManager(64, 2)
    both = [begun(blocks, number, [number] * 6, sampling=Sampling(max_tokens=20)) for number in (1, 2)]
    for length in range(7, 27):
        for of in both:
            assert blocks.extend(of, length)
    for of in both:
        assert of.blocks == list(range(of.blocks[0], of.blocks[0] + 13))


def test_sequences_lie_without_gaps_also_when_every_block_is_kept() -> None:
    blocks = BlockManager(400, 4)
    whole = 0
    for number in range(200):
        of = begun(blocks, number, [number] * 40, sampling=Sampling(max_tokens=20))
        assert blocks.extend(of, 50)
        whole += of.blocks == list(range(of.blocks[0], of.blocks[0] + 13))
        compute(blocks, of)
        blocks.release(of)
        blocks.check([])
    assert blocks.free == 400
    assert whole > 150


def test_no_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="hold nothing"):
        BlockManager(0, 4)


class Blocks(RuleBasedStateMachine):
    """Whatever is done, each sequence finds in its blocks what was computed for just its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(10, 2)
        self.memory: dict[tuple[int, int], tuple[int, ...]] = {}
        self.live: list[Sequence] = []
        self.number = 0

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9), pools=st.booleans(), spare=st.integers(0, 2))
    def begin(self, tokens: list[int], pools: bool, spare: int) -> None:
        self.number += 1
        of = sequence(self.number, tokens, pools=pools)
        if self.manager.begin(of, spare):
            self.live.append(of)
            assert self.manager.free >= spare

    @precondition(lambda self: self.live)
    @rule(data=st.data(), count=st.integers(1, 4))
    def compute(self, data: st.DataObject, count: int) -> None:
        of = data.draw(st.sampled_from(self.live))
        for position in range(of.computed, min(of.computed + count, len(of.tokens))):
            self.memory[of.blocks[position // 2], position % 2] = tuple(of.tokens[: position + 1])
            of.computed = position + 1
        self.manager.keep(of)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), max_size=3))
    def extend(self, data: st.DataObject, tokens: list[int]) -> None:
        of = data.draw(st.sampled_from(self.live))
        if self.manager.extend(of, len(of.tokens) + len(tokens)):
            of.tokens += tokens

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def catch_up(self, data: st.DataObject) -> None:
        of = data.draw(st.sampled_from(self.live))
        before = of.computed
        self.manager.catch_up(of)
        assert before <= of.computed
        assert of.computed in (before, *range(len(of.tokens)))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        of = data.draw(st.sampled_from(self.live))
        self.live.remove(of)
        self.manager.release(of)
        assert not of.blocks

    @invariant()
    def everyone_has_their_own(self) -> None:
        self.manager.check(self.live)
        for of in self.live:
            for position in range(of.computed):
                assert self.memory[of.blocks[position // 2], position % 2] == tuple(of.tokens[: position + 1])


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
