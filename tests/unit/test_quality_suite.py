"""The suite as a whole."""

from __future__ import annotations

from collections import Counter

from replies import said

from measure.quality.suite import CATEGORIES, SUITE, spread
from policies.types import Capability


def test_there_are_at_least_sixty_prompts_for_models_without_tools() -> None:
    assert sum(not prompt.needs for prompt in SUITE) >= 60


def test_every_category_has_prompts_and_every_prompt_its_own_id() -> None:
    assert set(Counter(prompt.category for prompt in SUITE)) == set(CATEGORIES)
    assert len({prompt.id for prompt in SUITE}) == len(SUITE)
    assert all(prompt.id.startswith(f"{prompt.category}/") for prompt in SUITE)


def test_no_prompt_is_passed_by_silence() -> None:
    assert [prompt.id for prompt in SUITE if not prompt.problems(said(""))] == []


def test_chats_alternate_and_end_with_the_user() -> None:
    for prompt in SUITE:
        roles = [message["role"] for message in prompt.messages]
        assert roles == (["user", "assistant"] * len(roles))[: len(roles)]
        assert roles[-1] == "user"


def test_a_run_is_short() -> None:
    assert sum(prompt.max_tokens for prompt in SUITE) < 5000
    assert sum(prompt.text_bytes for prompt in SUITE) < 40_000


def test_tools_are_sent_only_to_those_who_know_them() -> None:
    assert {need for prompt in SUITE for need in prompt.needs} == {Capability.TOOLS}


def test_a_part_of_the_suite_has_something_of_every_category() -> None:
    part = spread(SUITE, 40)
    assert len(part) == len({prompt.id for prompt in part}) == 40
    assert {prompt.category for prompt in part} == set(CATEGORIES)
    assert spread(SUITE, 1000) == list(SUITE)
