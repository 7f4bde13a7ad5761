"""Intervals hold the truth as often as they say, and are the same every time."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measure.quality.intervals import mean, paired_difference, ratio_of_sums


def test_equal_parts_have_an_interval_without_width() -> None:
    found = ratio_of_sums([(2.0, 4.0)] * 10)
    assert (found.value, found.low, found.high) == (0.5, 0.5, 0.5)


def test_the_same_parts_give_the_same_interval() -> None:
    parts = [(float(i % 7), 10.0) for i in range(50)]
    assert ratio_of_sums(parts) == ratio_of_sums(parts)


def test_a_ratio_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing"):
        ratio_of_sums([(1.0, 0.0)])


def test_bootstrap_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    random = Random(3)
    held = 0
    for _ in range(30):
        found = mean([random.expovariate(1.0) for _ in range(40)])
        held += found.low <= 1.0 <= found.high
    assert held >= 23  # 90 % are 27


def test_no_difference_in_many_prompts_rules_out_more_than_none_in_few() -> None:
    few, many = paired_difference(0, 0, 30), paired_difference(0, 0, 100)
    assert few.value == many.value == 0.0
    assert few.high > many.high > 0.0


def test_changes_in_both_directions_widen_the_interval_and_do_not_move_it() -> None:
    none, some = paired_difference(0, 0, 90), paired_difference(5, 5, 90)
    assert some.value == 0.0
    assert some.high > none.high
    assert some.low == pytest.approx(-some.high)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 100))
def test_a_difference_lies_in_its_interval_and_turns_round_with_its_sides(lost: int, gained: int, same: int) -> None:
    prompts = lost + gained + same
    found, turned = paired_difference(lost, gained, prompts), paired_difference(gained, lost, prompts)
    assert -1.0 <= found.low <= found.value <= found.high <= 1.0
    assert (found.low, found.high) == pytest.approx((-turned.high, -turned.low))


def test_paired_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    random = Random(5)
    held = 0
    for _ in range(400):
        cases = random.choices(["lost", "gained", "same"], [0.1, 0.02, 0.88], k=90)
        found = paired_difference(cases.count("lost"), cases.count("gained"), 90)
        held += found.low <= 0.08 <= found.high
    assert held / 400 == pytest.approx(0.9, abs=0.04)
