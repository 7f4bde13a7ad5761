"""Requests side by side: the closed formula against a simulation step by step, and what pairs and requests teach."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.contention import CPU_START, GPU_START, NOBODY, Beside, Contention, starting_factors
from policies.types import BatchSample, Hardware, PairSample


def simulate(work_s: float, neighbours_s: list[float], excess: float, theirs: float) -> float:
    """Run one phase beside neighbours, each slowed by the other side as long as both are active. Returns its time."""
    left, others, now = work_s, sorted(neighbours_s), 0.0
    while others:
        speed, their_speed = 1.0 / (1.0 + excess * len(others)), 1.0 / (1.0 + theirs * len(others))
        step = min(left / speed, others[0] / their_speed)
        now, left = now + step, left - step * speed
        others = [w - step * their_speed for w in others if w - step * their_speed > 1e-12]
        if left <= 1e-12:
            return now
    return now + left


def decode_beside(contention: Contention, seconds: float, others: list[float]) -> float:
    """Predict a decode beside other engines' decoding requests."""
    around = Beside(float(len(others)), 0.0, sum(others), 0.0)
    _, lost, _ = contention.effects(NOBODY, 0.0, around, 0.0, 0.0, seconds)
    return seconds + lost


@settings(deadline=None)
@given(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0, 8))
def test_the_formula_is_exact_for_one_neighbour(work_s: float, other_s: float, excess: float) -> None:
    contention = Contention(((0.0,) * 4, (0.0, 0.0, excess, 0.0)))
    assert decode_beside(contention, work_s, [other_s]) == pytest.approx(simulate(work_s, [other_s], excess, excess))


@settings(deadline=None)
@given(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0.05, 8), st.floats(0.05, 8))
def test_the_formula_is_exact_when_the_two_slow_each_other_differently(
    work_s: float, other_s: float, excess: float, theirs: float
) -> None:
    contention = Contention(((theirs, 0.0, 0.0, 0.0), (0.0, excess, 0.0, 0.0)))
    own = Beside(0.0, 1.0, 0.0, other_s)
    _, lost, _ = contention.effects(own, 0.0, NOBODY, 0.0, 0.0, work_s)
    assert work_s + lost == pytest.approx(simulate(work_s, [other_s], excess, theirs))


def test_equal_shares_are_processor_sharing() -> None:
    contention = Contention(((1.0,) * 4, (1.0,) * 4))
    assert decode_beside(contention, 1.0, [0.5]) == pytest.approx(1.5)
    assert decode_beside(contention, 1.0, [5.0]) == pytest.approx(2.0)
    assert decode_beside(contention, 1.0, [0.5, 0.5]) == pytest.approx(2.0)


def test_a_prompt_waits_for_others_in_its_engine_no_longer_than_they_are_read() -> None:
    pair = PairSample("same", "prefilling", 6.0, 1.0)  # a short prompt, beside long ones without end
    contention = Contention.measured([pair], CPU_START)

    def loses(seconds: float, others_s: float) -> float:
        first, _, cost = contention.effects(Beside(0.0, 1.0, 0.0, others_s), 1.0, NOBODY, 0.0, seconds, 0.0)
        assert cost <= seconds
        return first

    assert loses(0.1, 0.4) == pytest.approx(0.4)
    assert loses(0.8, 0.4) == pytest.approx(0.4)
    assert loses(0.1, 5.0) == pytest.approx(0.5)


def test_a_neighbour_slows_only_as_long_as_it_has_something_to_do() -> None:
    contention = Contention(CPU_START)
    short, long = decode_beside(contention, 4.0, [0.1]), decode_beside(contention, 4.0, [100.0])
    assert short == pytest.approx(4.38)
    assert long == pytest.approx(4.0 * 4.8)


def test_it_starts_from_the_figures_that_were_measured_on_two_cores() -> None:
    contention = Contention()
    assert 1.35 * contention.factor("prefill", {"other_decoding": 1.0}) == pytest.approx(5.3, rel=0.01)
    assert 48 / contention.factor("decode", {"other_decoding": 1.0}) == pytest.approx(10, rel=0.01)
    assert 1.35 * contention.factor("prefill", {"other_prefilling": 1.0}) == pytest.approx(4.2, rel=0.01)
    assert 48 / contention.factor("decode", {"other_prefilling": 1.0}) == pytest.approx(7, rel=0.01)
    assert 48 / contention.factor("decode", {"same_decoding": 1.0}) == pytest.approx(37, rel=0.01)
    assert 1.35 * contention.factor("prefill", {"same_prefilling": 1.0}) == pytest.approx(2.4, rel=0.01)
    assert 48 / contention.factor("decode", {"same_prefilling": 1.0}) == pytest.approx(2, rel=0.01)


def test_what_one_loses_the_other_is_charged_for() -> None:
    contention = Contention(((1.0,) * 4, (1.0,) * 4))
    _, lost, cost = contention.effects(NOBODY, 0.0, Beside(1.0, 0.0, 3.0, 0.0), 0.0, 0.0, 2.0)
    assert lost == pytest.approx(2.0)
    assert cost == pytest.approx(2.0)


def test_nobody_around_costs_nothing() -> None:
    assert Contention().effects(NOBODY, 0.0, NOBODY, 0.0, 1.0, 1.0) == (0.0, 0.0, 0.0)


def test_measured_pairs_replace_the_start_values_and_others_stay() -> None:
    pairs = [PairSample("other", "decoding", 2.0, 3.0), PairSample("other", "decoding", 2.2, 3.2)]
    contention = Contention.measured(pairs, CPU_START)
    assert contention.factor("prefill", {"other_decoding": 1.0}) == pytest.approx(2.1)
    assert contention.factor("decode", {"other_decoding": 1.0}) == pytest.approx(3.1)
    assert contention.factor("decode", {"same_decoding": 1.0}) == pytest.approx(1.3)
    quicker = Contention.measured([PairSample("same", "decoding", 0.9, 0.9)], CPU_START)
    assert quicker.factor("decode", {"same_decoding": 1.0}) == 1.0
    with pytest.raises(ValueError):
        Contention.measured([PairSample("same", "sleeping", 1.0, 1.0)], CPU_START)


def test_accelerators_start_from_shares_and_cores_from_the_measured_figures() -> None:
    assert starting_factors(Hardware("pc", frozenset({"pc/cpu"}))) is CPU_START
    assert starting_factors(Hardware("pc", frozenset({"pc/cpu", "pc/GPU-3f"}))) is GPU_START


def test_a_neighbour_for_part_of_the_time_slows_for_that_part() -> None:
    contention = Contention(((0.0,) * 4, (0.0, 0.0, 3.0, 0.0)))
    taken_s = simulate(1.0, [0.25], 3.0, 3.0)
    mean = 0.25 * 4.0 / taken_s
    assert contention.factor("decode", {"other_decoding": mean}) == pytest.approx(taken_s)


def test_served_requests_correct_the_excess_also_from_partial_overlap() -> None:
    contention = Contention(CPU_START)
    truth = Contention(((0.0,) * 4, (0.0, 0.0, 1.2, 0.0)))
    for i in range(200):
        beside = {"other_decoding": (0.4, 0.7, 1.0, 2.0)[i % 4]}
        contention.learn("decode", beside, truth.factor("decode", beside))
    assert contention.factor("decode", {"other_decoding": 1.0}) == pytest.approx(2.2, rel=0.03)


def test_two_kinds_of_neighbours_are_told_apart() -> None:
    contention = Contention(CPU_START)
    truth = Contention(((0.0,) * 4, (0.5, 0.0, 2.0, 0.0)))
    mixes = [{"same_decoding": 1.0}, {"other_decoding": 1.0}, {"same_decoding": 1.0, "other_decoding": 1.0}]
    for i in range(300):
        contention.learn("decode", mixes[i % 3], truth.factor("decode", mixes[i % 3]))
    for beside in mixes:
        assert contention.factor("decode", beside) == pytest.approx(truth.factor("decode", beside), rel=0.05)


def test_one_odd_request_moves_the_excess_a_little_only() -> None:
    contention = Contention(CPU_START)
    before = contention.factor("decode", {"other_decoding": 1.0})
    contention.learn("decode", {"other_decoding": 1.0}, 1000.0)
    assert contention.factor("decode", {"other_decoding": 1.0}) <= before * 1.11
    contention.learn("decode", {"other_decoding": 0.1}, 0.1)
    contention.learn("decode", {}, 3.0)
    assert contention.factor("decode", {"other_decoding": 1.0}) >= before


def test_contention_survives_a_store_and_refuses_what_is_none() -> None:
    contention = Contention(GPU_START)
    contention.learn("decode", {"other_decoding": 1.0}, 3.0)
    again = Contention.from_dict(json.loads(json.dumps(contention.to_dict())))
    assert again.to_dict() == contention.to_dict()
    with pytest.raises(ValueError, match="4 values"):
        Contention.from_dict({"prefill": [1.0], "decode": [1.0]})


def batches(*tpot_s: float) -> list[BatchSample]:
    """1, 2, 4, … at once with these seconds per token."""
    return [BatchSample(1 << i, 64, 32, 0.3, seconds) for i, seconds in enumerate(tpot_s)]


def test_the_law_of_a_batch_goes_through_what_was_measured() -> None:
    contention = Contention.measured([], CPU_START, batches(0.020, 0.024, 0.036))
    assert contention.batch_factor(0.0) == 1.0
    assert contention.batch_factor(1.0) == pytest.approx(1.2)
    assert contention.batch_factor(3.0) == pytest.approx(1.8)
    assert contention.factor("decode", {"same_decoding": 3.0}) == pytest.approx(1.8)
    assert contention.batch_factor(7.0) > 2.5


def test_a_batch_that_costs_nothing_is_a_law_too() -> None:
    contention = Contention.measured([], CPU_START, batches(0.020, 0.019, 0.020))
    assert contention.batch_factor(3.0) == 1.0


def test_a_batch_law_is_not_bent_by_noise() -> None:
    contention = Contention.measured([], CPU_START, batches(0.020, 0.0200001, 0.026))
    assert 1.04 < contention.batch_factor(1.0) < 1.06


def test_batches_without_the_same_request_alone_say_nothing() -> None:
    contention = Contention.measured([], CPU_START, batches(0.020, 0.024)[1:])
    assert contention.batch_factor(1.0) == pytest.approx(1.3)


def test_a_batch_law_is_corrected_as_a_whole_and_survives_a_store() -> None:
    contention = Contention.measured([], CPU_START, batches(0.020, 0.024, 0.036))
    for _ in range(100):
        contention.learn("decode", {"same_decoding": 1.0}, 1.4)
    assert contention.batch_factor(1.0) == pytest.approx(1.4, rel=0.02)
    assert contention.batch_factor(3.0) > 2.0
    again = Contention.from_dict(json.loads(json.dumps(contention.to_dict())))
    assert again.batch_factor(3.0) == pytest.approx(contention.batch_factor(3.0))
