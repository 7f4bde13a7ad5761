"""The laws of measurement prompts."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measure.prompts import SEEDS_APART, prompt, prompt_after

seeds = st.integers(0, 10**9)
lengths = st.integers(1, 3000)
ratios = st.floats(0.5, 8.0)


@given(lengths, seeds, ratios)
def test_a_prompt_is_as_long_as_asked_and_never_longer(tokens: int, seed: int, ratio: float) -> None:
    size = len(prompt(tokens, seed, ratio).encode())
    wanted = max(1, int(tokens * ratio))
    assert wanted - 3 <= size <= wanted  # a cut within a character gives up to three bytes back


@given(seeds, st.integers(1, SEEDS_APART - 1), lengths)
def test_neighbouring_seeds_differ_from_the_first_byte_on(seed: int, distance: int, tokens: int) -> None:
    assert prompt(tokens, seed)[0] != prompt(tokens, seed + distance)[0]


@given(seeds, st.integers(1, 1000))
def test_no_two_seeds_give_the_same_beginning(seed: int, distance: int) -> None:
    assert prompt(12, seed, 4.0) != prompt(12, seed + distance, 4.0)


@given(seeds, lengths)
def test_a_longer_prompt_of_the_same_seed_goes_on_from_the_shorter_one(seed: int, tokens: int) -> None:
    assert prompt(tokens + 50, seed).startswith(prompt(tokens, seed))


def test_the_same_seed_gives_the_same_prompt_in_another_process() -> None:
    code = "from measure.prompts import prompt; print(ascii(prompt(300, 42)))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert other.stdout.strip() == ascii(prompt(300, 42))


@given(seeds)
def test_a_long_prompt_is_ordinary_text_in_which_no_word_dominates(seed: int) -> None:
    words = prompt(2000, seed).split()
    commonest, times = Counter(words).most_common(1)[0]
    assert times < len(words) / 10, commonest
    assert len(set(words)) > 250


@given(seeds)
def test_a_long_prompt_holds_several_scripts_and_code(seed: int) -> None:
    text = prompt(2000, seed)
    assert any("а" <= letter <= "я" for letter in text)
    assert any("一" <= letter <= "鿿" for letter in text)
    assert "SELECT" in text or "def " in text or "{" in text


@pytest.mark.parametrize(("tokens", "ratio"), [(0, 3.5), (-1, 3.5), (10, 0.0)])
def test_a_prompt_of_no_length_is_refused(tokens: int, ratio: float) -> None:
    with pytest.raises(ValueError):
        prompt(tokens, 1, ratio)


@given(st.integers(1, 800), st.integers(1, 800), seeds, st.integers(1, SEEDS_APART - 1))
def test_prompts_after_a_prefix_differ_only_behind_it(prefix: int, more: int, seed: int, distance: int) -> None:
    one, other = (prompt_after(prefix, prefix + more, each) for each in (seed, seed + distance))
    same = prompt(prefix, 0)
    assert one.startswith(same)
    assert other.startswith(same)
    assert one[: len(same) + 2] != other[: len(same) + 2]
