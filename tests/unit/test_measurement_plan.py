"""The rule that fits a measurement into its budget."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from measure.plan import Plan

LENGTHS = (32, 128, 512)


def carry_out(plan: Plan, seconds: Callable[[int], float]) -> list[int]:
    order: list[int] = []
    while (length := plan.next()) is not None:
        order.append(length)
        plan.ran(length, seconds(length))
    return order


def test_a_fast_engine_is_measured_three_times_at_each_length_breadth_first() -> None:
    plan = Plan(LENGTHS, runs=3, budget_s=10.0)
    assert carry_out(plan, lambda length: 0.1) == [*LENGTHS, *reversed(LENGTHS), *LENGTHS]
    assert plan.runs_left == 0


def test_a_slow_engine_is_measured_once_at_the_two_shortest_lengths() -> None:
    assert carry_out(Plan(LENGTHS, runs=3, budget_s=10.0), lambda length: length / 5) == [32, 128]


def test_what_is_left_of_the_budget_goes_to_the_lengths_that_fit() -> None:
    order = carry_out(Plan(LENGTHS, runs=3, budget_s=10.0), lambda length: length / 40)
    assert order == [32, 128, 128, 32, 32]


def test_an_engine_that_reads_fast_and_writes_slowly_is_measured_at_every_length() -> None:
    order = carry_out(Plan(LENGTHS, runs=3, budget_s=10.0), lambda length: 0.65 + length / 2000)
    assert order == [*LENGTHS, *reversed(LENGTHS), *LENGTHS]


def test_the_longest_prompt_is_read_where_it_leaves_enough_for_the_others_second_time() -> None:
    four = (*LENGTHS, 1024)
    order = carry_out(Plan(four, runs=2, budget_s=10.0), lambda length: 0.1)
    assert order == [*LENGTHS, 1024, *reversed(LENGTHS), 1024]
    order = carry_out(Plan(four, runs=5, budget_s=10.0), lambda length: length / 200)
    assert 1024 not in order
    assert order[:6] == [*LENGTHS, *reversed(LENGTHS)]


def test_the_shortest_prompt_never_comes_right_after_the_longest() -> None:
    order = carry_out(Plan((*LENGTHS, 1024), runs=5, budget_s=100.0), lambda length: 0.1)
    assert (1024, 32) not in pairwise(order)


def test_a_spare_length_gets_what_the_others_leave() -> None:
    five = (*LENGTHS, 1024, 4096)
    order = carry_out(Plan(five, runs=3, budget_s=10.0, spare=4096), lambda length: 0.1 + length / 10000)
    assert order[-3:] == [4096] * 3
    assert sorted(order[:-3]) == sorted((*LENGTHS, 1024) * 3)
    order = carry_out(Plan(five, runs=3, budget_s=2.0, spare=4096), lambda length: 0.1 + length / 10000)
    assert sorted(order) == sorted((*LENGTHS, 1024) * 3)


def test_a_failed_length_is_left_and_another_one_takes_its_place() -> None:
    plan = Plan(LENGTHS, runs=1, budget_s=0.0)
    assert plan.next() == 32
    plan.failed(32)
    assert carry_out(plan, lambda length: 1.0) == [128, 512]


def test_a_plan_that_is_cut_still_does_what_a_curve_needs() -> None:
    plan = Plan(LENGTHS, runs=3, budget_s=100.0)
    plan.ran(32, 0.1)
    plan.cut()
    assert carry_out(plan, lambda length: 0.1) == [128]


def test_a_single_length_is_enough_for_a_tiny_context() -> None:
    assert carry_out(Plan((20, 20, 20), runs=2, budget_s=10.0), lambda length: 0.1) == [20, 20]


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=6, unique=True),
    st.integers(1, 5),
    st.floats(0.0, 100.0),
    st.floats(0.0001, 1.0),
    st.floats(0.0, 5.0),
)
def test_the_budget_is_only_passed_by_the_necessary_runs(
    lengths: list[int], runs: int, budget_s: float, per_token_s: float, base_s: float
) -> None:
    plan = Plan(lengths, runs=runs, budget_s=budget_s)
    cost: Callable[[int], float] = lambda length: base_s + length * per_token_s  # noqa: E731
    order = carry_out(plan, cost)
    necessary = sorted(lengths)[:2]
    assert set(necessary) <= set(order)
    assert all(order.count(length) <= runs for length in lengths)
    assert plan.spent_s <= max(budget_s, sum(cost(length) for length in necessary)) * (1 + 1e-9)
