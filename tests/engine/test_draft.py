"""Drafts by a smaller model: they are what it would say, whatever became of those before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import save
from driving import BLOCK, generate, own_blocks, runner, sequence
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.block_manager import BlockManager
from engine.draft import DraftModel
from engine.errors import OutOfMemory
from engine.request import Plan, Sequence
from engine.runner import Pending

PROMPT = [5, 9, 40, 41, 300, 12]
BLOCKS = 24


@pytest.fixture(scope="module")
def small(tiny: Callable[[str], Path]) -> Path:
    return tiny("llama")


def said(path: Path, tokens: list[int], count: int) -> list[int]:
    """What the model says next, greedily, from nothing."""
    asked = sequence(0, list(tokens))
    own_blocks([asked], count + 1)
    return generate(runner(path), [asked], count)[0]


def proposer(path: Path, budget: int = 512, blocks: int = BLOCKS) -> tuple[DraftModel, BlockManager]:
    manager = BlockManager(blocks, BLOCK, prefix_cache=False)
    return DraftModel(runner(path, blocks=blocks), manager, context=256, budget=budget), manager


def test_drafts_are_what_the_small_model_would_say(small: Path) -> None:
    drafts, _ = proposer(small)
    asked = [sequence(0, PROMPT), sequence(1, [7, 8, 9]), sequence(2, [30])]
    drafts.propose(asked, [4, 2, 0])
    assert [each.drafts for each in asked] == [said(small, PROMPT, 4), said(small, [7, 8, 9], 2), []]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(0, 511), max_size=3)), min_size=1, max_size=6))
def test_drafts_are_right_whatever_part_of_those_before_was_accepted(
    small: Path, steps: list[tuple[int, list[int]]]
) -> None:
    drafts, manager = proposer(small)
    asked = sequence(0, PROMPT)
    for accepted, other in steps:
        drafts.propose([asked], [4])
        assert asked.drafts == said(small, asked.tokens, 4)
        asked.tokens += [*asked.drafts[:accepted], *other]
        asked.drafts = []
    drafts.forget(asked)
    assert manager.free == BLOCKS


def test_a_long_prompt_is_read_in_parts_and_drafted_for_once_it_is_read(small: Path) -> None:
    drafts, _ = proposer(small, budget=16)
    asked = sequence(0, list(range(10, 60)))
    seen = []
    for _ in range(4):
        drafts.propose([asked], [2])
        seen.append(asked.drafts)
    assert seen == [[], [], [], said(small, asked.tokens, 2)]


def test_a_sequence_without_room_gets_no_drafts_and_the_others_theirs(small: Path) -> None:
    drafts, manager = proposer(small, blocks=2)
    long, short = sequence(0, list(range(40))), sequence(1, PROMPT)
    drafts.propose([long, short], [3, 3])
    assert long.drafts == []
    assert short.drafts == said(small, PROMPT, 3)
    beyond = sequence(2, list(range(256)))
    drafts.propose([beyond], [1])
    assert beyond.drafts == []
    for each in (long, short, beyond):
        drafts.forget(each)
    assert manager.free == 2


def test_a_small_model_whose_memory_is_full_costs_no_more_than_the_drafts(small: Path) -> None:
    drafts, _ = proposer(small)
    asked = sequence(0, PROMPT)
    start = drafts._runner.start

    def full(plan: Plan) -> Pending:
        raise OutOfMemory("full")

    drafts._runner.start = full  # type: ignore[method-assign]
    drafts.propose([asked], [3])
    assert asked.drafts == []
    drafts._runner.start = start  # type: ignore[method-assign]
    drafts.propose([asked], [3])
    assert asked.drafts == said(small, PROMPT, 3)


def test_any_small_model_leaves_the_answer_as_it_is_and_the_same_model_saves_steps(small: Path, tmp_path: Path) -> None:
    expected = said(small, PROMPT, 24)
    for path, most_steps in ((small, 6), (save("llama", tmp_path, seed=9), 24)):
        drafts, _ = proposer(path)
        large = runner(small)
        asked: Sequence = sequence(0, PROMPT)
        own_blocks([asked], 40)
        steps = 0
        while asked.generated < 24:
            if asked.computed:
                drafts.propose([asked], [4])
            generate(large, [asked], asked.generated + 1)
            steps += 1
        assert list(asked.output)[:24] == expected
        assert steps <= most_steps
