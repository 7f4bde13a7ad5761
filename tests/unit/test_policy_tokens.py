"""Lengths that are learned: prompt tokens from bytes, answers from answers; and the prefixes that a cache holds."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.prefix import PrefixMemory
from policies.tokens import OutputLength, TokenRatio


def test_the_start_value_errs_to_more_tokens_than_english_has() -> None:
    tokens, least = TokenRatio().estimate("m", 4500)
    assert tokens > 1000
    assert least < 1000


@settings(deadline=None)
@given(st.integers(0, 10**7))
def test_the_least_is_never_more_than_the_estimate(size: int) -> None:
    tokens, least = TokenRatio().estimate("m", size)
    assert 1 <= least <= tokens


def test_tokens_per_byte_and_the_templates_overhead_are_learned() -> None:
    ratio, dice = TokenRatio(), random.Random(3)
    for _ in range(100):
        size = dice.choice([60, 400, 1200, 4000])
        ratio.learn("m", size, round(31 + size / 4.2 * dice.uniform(0.95, 1.05)))
    for size in (60, 200, 1000, 8000):
        assert ratio.estimate("m", size)[0] == pytest.approx(31 + size / 4.2, rel=0.08)
    assert ratio.estimate("other", 1000) == TokenRatio().estimate("other", 1000)


def test_prompts_of_one_length_teach_too() -> None:
    ratio = TokenRatio()
    for _ in range(100):
        ratio.learn("m", 1000, 400)
    assert ratio.estimate("m", 1000)[0] == pytest.approx(400, rel=0.05)


def test_a_language_with_more_tokens_per_byte_is_followed() -> None:
    ratio = TokenRatio()
    for size in (300, 900, 1500) * 20:
        ratio.learn("m", size, size)
    assert ratio.estimate("m", 2000)[0] == pytest.approx(2000, rel=0.1)


def test_a_denser_prompt_than_thought_possible_lowers_the_bound() -> None:
    ratio = TokenRatio()
    assert ratio.estimate("m", 32000)[1] == 2666
    ratio.learn("m", 32000, 1000)
    assert ratio.estimate("m", 32000)[1] < 1000


def test_counts_that_make_no_sense_still_give_a_growing_estimate() -> None:
    ratio = TokenRatio()
    for _ in range(50):
        ratio.learn("m", 100, 3000)
        ratio.learn("m", 9000, 200)
    assert 0 < ratio.estimate("m", 100)[0] < ratio.estimate("m", 9000)[0]


def test_nonsense_teaches_nothing() -> None:
    ratio = TokenRatio()
    ratio.learn("m", 0, 10)
    ratio.learn("m", 10, 0)
    assert ratio.to_dict() == {}


def test_token_ratios_survive_a_store_and_stay_bounded() -> None:
    ratio = TokenRatio()
    for i in range(600):
        ratio.learn(f"m{i}", 1000, 250)
    kept = json.loads(json.dumps(ratio.to_dict()))
    assert len(kept) == 512
    again = TokenRatio()
    again.restore(kept)
    again.restore({f"x{i}": kept["m599"] for i in range(99)})
    assert len(again.to_dict()) == 512
    assert again.estimate("m599", 500) == ratio.estimate("m599", 500)


# --- answers


def test_an_answer_is_expected_to_be_as_long_as_those_before_and_never_longer_than_allowed() -> None:
    length = OutputLength()
    assert length.expect("m", "ann", None) == 128
    for _ in range(60):
        length.learn("m", "ann", 20)
    assert length.expect("m", "ann", None) == pytest.approx(20, abs=1)
    assert length.expect("m", "ann", 8) == 8


def test_a_new_caller_is_taken_to_be_like_the_others_of_that_model() -> None:
    length = OutputLength()
    for _ in range(60):
        length.learn("m", "ann", 500)
    assert length.expect("m", "bob", None) > 450
    assert length.expect("n", "bob", None) == 128


def test_callers_are_told_apart() -> None:
    length = OutputLength()
    for _ in range(60):
        length.learn("m", "ann", 500)
        length.learn("m", "bob", 10)
    assert length.expect("m", "ann", None) > 450
    assert length.expect("m", "bob", None) < 20


def test_an_answer_that_was_cut_teaches_only_that_it_would_have_been_longer() -> None:
    length = OutputLength()
    for _ in range(60):
        length.learn("m", "ann", 16, was_cut=True)
    assert length.expect("m", "ann", None) == 128
    for _ in range(60):
        length.learn("m", "ann", 900, was_cut=True)
    assert length.expect("m", "ann", None) > 800
    length.learn("m", "ann", 0)
    assert length.expect("m", "ann", None) > 800


def test_the_memory_of_callers_is_bounded_and_keeps_the_recent_ones() -> None:
    length = OutputLength()
    for i in range(5000):
        length.learn("m", f"caller{i}", 1000)
    assert length.expect("m", "caller4999", None) > 128
    assert len(length) == 4096


# --- prefixes


def test_a_prompt_that_was_sent_is_held_up_to_the_block_where_another_departs() -> None:
    memory = PrefixMemory()
    memory.remember("a", (1, 2, 3, 4), 64)
    memory.remember("a", (), 64)
    assert memory.cached_tokens("a", (1, 2, 3, 4), 64) == 256
    assert memory.cached_tokens("a", (1, 2, 9, 8), 64) == 128
    assert memory.cached_tokens("a", (7, 8), 64) == 0
    assert memory.cached_tokens("a", (), 64) == 0
    assert memory.cached_tokens("b", (1, 2), 64) == 0


def test_a_conversation_goes_on_from_the_end_of_the_answer() -> None:
    memory = PrefixMemory()
    memory.remember("a", (1, 2), 64, messages=(11,), prompt_tokens=150, output_tokens=40)
    assert memory.cached_tokens("a", (1, 2, 3, 4), 64, 260, messages=(11, 12, 13)) == 190
    assert memory.holders((1, 2, 3), 64, 260, messages=(11, 12, 13)) == {"a": 190}
    memory.remember("a", (1, 2, 3, 4), 64, messages=(11, 12, 13), prompt_tokens=260, output_tokens=40)
    assert memory.cached_tokens("a", (1, 2, 3, 4, 5), 64, 400, messages=(11, 12, 13, 14, 15)) == 300
    assert memory.cached_tokens("a", (1, 2, 3, 9), 64, 260, messages=(11, 12, 19)) == 192


def test_a_conversation_that_is_shorter_than_a_block_is_known_by_its_messages() -> None:
    memory = PrefixMemory()
    memory.remember("a", (), 64, messages=(11,), prompt_tokens=30, output_tokens=20)
    assert memory.holders((), 64, 70, messages=(11, 12, 13)) == {"a": 50}
    assert memory.holders((), 64, 30, messages=(11,)) == {"a": 30}, "the same again"
    assert memory.holders((), 64, 70, messages=(10, 12, 13)) == {}


def test_what_a_model_thought_does_not_stand_in_the_next_prompt() -> None:
    memory = PrefixMemory()
    memory.remember("a", (), 64, messages=(11,), prompt_tokens=30, output_tokens=900)
    assert memory.cached_tokens("a", (), 64, 70, messages=(11, 12, 13)) == 30


def test_another_question_after_the_same_instructions_is_no_continuation() -> None:
    memory = PrefixMemory()
    memory.remember("a", (1, 2), 64, messages=(10, 11), prompt_tokens=150, output_tokens=40)
    assert memory.cached_tokens("a", (1, 2), 64, 140, messages=(10, 21)) == 128
    assert memory.cached_tokens("a", (1, 2, 7, 8, 9), 64, 330, messages=(10, 21)) == 128
    assert memory.cached_tokens("a", (1, 5), 64, 260, messages=(30,)) == 64


def test_what_the_engines_cache_cannot_hold_is_forgotten_the_oldest_first_and_its_end_before_its_head() -> None:
    memory = PrefixMemory()
    memory.remember("a", (1, 2, 3), 64, capacity_tokens=256)
    memory.remember("a", (10, 11), 64, capacity_tokens=256)
    assert memory.cached_tokens("a", (1, 2, 3), 64) == 128
    assert memory.cached_tokens("a", (10, 11), 64) == 128


def test_the_end_of_an_answer_is_forgotten_before_what_it_answers() -> None:
    memory = PrefixMemory()
    memory.remember("a", (1, 2), 64, 256, messages=(5,), prompt_tokens=150, output_tokens=40)
    memory.remember("a", (10, 11), 64, 256, messages=(15,), prompt_tokens=150, output_tokens=40)
    assert memory.cached_tokens("a", (1, 2, 3), 64, 260, messages=(5, 6, 7)) == 64
    assert memory.cached_tokens("a", (10, 11), 64, 260, messages=(15, 16, 17)) == 190


def test_using_a_prefix_keeps_it() -> None:
    memory = PrefixMemory()
    memory.remember("a", (1, 2), 64, capacity_tokens=256)
    memory.remember("a", (10, 11), 64, capacity_tokens=256)
    memory.remember("a", (1, 2), 64, capacity_tokens=256)
    memory.remember("a", (20, 21), 64, capacity_tokens=256)
    assert memory.cached_tokens("a", (1, 2), 64) == 128
    assert memory.cached_tokens("a", (10, 11), 64) == 0


def test_a_deployment_that_went_holds_nothing_and_the_others_hold_what_they_held() -> None:
    memory = PrefixMemory()
    memory.remember("a", (1, 2), 64)
    memory.remember("b", (1, 2), 64)
    memory.keep({"b", "never seen"})
    assert memory.cached_tokens("a", (1, 2), 64) == 0
    assert memory.cached_tokens("b", (1, 2), 64) == 128


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), max_size=12), st.integers(1, 12))
def test_the_search_finds_the_longest_prefix_that_is_held(prompts: list[list[int]], capacity: int) -> None:
    """Chained hashes: a block's hash stands for all blocks up to it."""
    memory, held = PrefixMemory(), set()
    for prompt in prompts:
        chain = [hash(tuple(prompt[: i + 1])) for i in range(len(prompt))]
        memory.remember("a", chain, 1, capacity)
        held = {block for block in held | set(chain) if memory.cached_tokens("a", [block], 1)}
        longest = next((i for i, block in enumerate(chain) if block not in held), len(chain))
        assert memory.cached_tokens("a", chain, 1) == longest
    assert len(held) <= capacity
