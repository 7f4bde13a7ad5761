"""Curves, drift, spread, and what a served request may teach about speed."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from math import log

import pytest
from fleets import NOW, samples
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.corrected import CorrectedCurve
from policies.curve import Curve
from policies.drift import Drift
from policies.interval import Spread
from policies.profile import Profile
from policies.speed import SpeedModel
from policies.types import Hardware, Observation, SpeedSample

SERVED = Observation("a", "f", 256, 33, ttft_s=1.024, total_s=1.664, cached_tokens=0)
"""What ``samples()`` predicts, exactly."""


def profile() -> Profile:
    return Profile.measured(samples(), (), Hardware("pc"))


points = st.lists(st.tuples(st.integers(1, 8000), st.floats(0.001, 100)), min_size=1, max_size=8)


@settings(deadline=None)
@given(points, st.integers(0, 20000), st.integers(0, 20000))
def test_a_curve_never_falls_and_is_never_negative(measured: list[tuple[int, float]], a: int, b: int) -> None:
    curve = Curve(measured)
    low, high = sorted((a, b))
    assert 0.0 <= curve.at(low) <= curve.at(high) + 1e-9


def test_a_curve_goes_through_what_was_measured_and_is_straight_between() -> None:
    curve = Curve([(16, 0.1), (64, 0.2), (1000, 4.0)])
    assert curve.at(16) == pytest.approx(0.1)
    assert curve.at(64) == pytest.approx(0.2)
    assert curve.at(532) == pytest.approx(2.1)


def test_short_prompts_have_knots_of_their_own() -> None:
    """They run on other kernels: the line through the long ones is far off below 64 tokens."""
    curve = Curve([(16, 0.30), (48, 0.40), (256, 1.0), (1024, 4.0)])
    assert curve.at(16) == pytest.approx(0.30)
    assert curve.at(32) == pytest.approx(0.35)


def test_a_curve_extends_to_both_sides_by_its_outer_slopes() -> None:
    curve = Curve([(100, 1.0), (200, 1.5), (400, 3.5)])
    assert curve.at(0) == pytest.approx(0.5)
    assert curve.at(600) == pytest.approx(5.5)
    assert Curve([(100, 1.0)]).at(50) == pytest.approx(0.5)
    assert Curve([(100, 1.0)]).at(300) == pytest.approx(2.0)


def test_noise_that_makes_a_longer_prompt_seem_quicker_is_levelled_out() -> None:
    curve = Curve([(100, 1.2), (200, 1.0), (200, 1.0), (200, 9.0)])
    assert curve.at(100) == curve.at(200) == pytest.approx(1.1)
    assert curve.at(2000) > 5.0


def test_a_curve_needs_a_point() -> None:
    with pytest.raises(ValueError, match="point"):
        Curve([])
    with pytest.raises(ValueError, match="point"):
        SpeedModel([SpeedSample(64, 32, 0.0, 0.02)])


def test_prefill_and_decode_are_predicted_apart() -> None:
    speed = SpeedModel(samples(250.0, 50.0))
    assert speed.prefill_s(500, NOW) == pytest.approx(2.0)
    assert speed.decode_s(500, 51, NOW) == pytest.approx(1.0)
    assert speed.decode_s(500, 1, NOW) == 0.0


def test_decode_slows_with_the_context() -> None:
    speed = SpeedModel([SpeedSample(100, 20, 0.4, 0.0125), SpeedSample(900, 20, 3.6, 0.027)])
    assert speed.tpot.at(110, NOW) == pytest.approx(0.0125)
    assert speed.tpot.at(510, NOW) == pytest.approx(0.01975)


def test_an_engine_that_only_embeds_has_no_decode() -> None:
    assert SpeedModel([SpeedSample(64, 0, 0.1, 0.0)]).decode_s(64, 100, NOW) == 0.0


# --- drift


def test_drift_is_followed_within_a_score_of_requests() -> None:
    speed = SpeedModel(samples())
    for _ in range(20):
        speed.observe_prefill(256, 1.024 * 1.4, NOW)
    assert speed.prefill_s(256, NOW) == pytest.approx(1.024 * 1.4, rel=0.02)
    assert speed.tpot.at(256, NOW) == pytest.approx(0.02)


def test_a_settled_correction_follows_the_design_weight_of_a_fifth() -> None:
    curve = CorrectedCurve([(256, 1.0)])
    for _ in range(40):
        curve.learn(256, 1.0, 1.0, NOW)
    curve.learn(256, 1.2, 1.0, NOW)
    assert curve.at(256, NOW) == pytest.approx(1.2**0.2, rel=0.01)


def test_the_first_requests_correct_a_measurement_that_was_made_in_a_bad_moment() -> None:
    drift = Drift()
    for _ in range(4):
        drift.learn(max(-0.5, log(0.4 / drift.factor(NOW))), NOW)
    assert drift.factor(NOW) < 0.6


def test_one_outlier_moves_a_settled_prediction_by_a_tenth_at_most() -> None:
    for odd in (100.0, 0.001):
        speed = SpeedModel(samples())
        for _ in range(40):
            speed.observe_prefill(256, 1.024, NOW)
        speed.observe_prefill(256, odd, NOW)
        assert speed.prefill_s(256, NOW) == pytest.approx(1.024, rel=0.11)


def test_old_corrections_fade_towards_the_measurement() -> None:
    drift = Drift()
    for _ in range(50):
        drift.learn(log(2.0 / drift.factor(NOW)), NOW)
    assert drift.factor(NOW) == pytest.approx(2.0, rel=0.01)
    assert drift.factor(NOW + 900) == pytest.approx(2.0**0.5, rel=0.01)
    assert drift.factor(NOW + 9000) == pytest.approx(1.0, abs=0.01)


def test_a_correction_starts_from_what_has_faded_not_from_what_was() -> None:
    drift = Drift()
    for _ in range(50):
        drift.learn(log(2.0 / drift.factor(NOW)), NOW)
    later = NOW + 1800
    before = drift.factor(later)
    drift.learn(0.0, later)
    assert drift.factor(later) == pytest.approx(before)


def test_no_correction_leaves_the_measurement_by_more_than_eight_times() -> None:
    drift = Drift()
    for _ in range(200):
        drift.learn(0.5, NOW)
    assert drift.factor(NOW) == pytest.approx(8.0)


def test_the_spread_holds_four_of_five_outcomes() -> None:
    spread, dice = Spread(), random.Random(7)
    held = 0
    for i in range(4000):
        actual = dice.lognormvariate(0.0, 0.15)
        held += i >= 500 and abs(actual - 1.0) <= spread.half_width
        spread.learn(actual, 1.0)
    assert 0.76 <= held / 3500 <= 0.84
    assert 0.1 < spread.half_width < 0.4


def test_the_spread_starts_wide_and_narrows_when_predictions_hold() -> None:
    spread = Spread()
    assert spread.half_width == 0.4
    for _ in range(30):
        spread.learn(1.02, 1.0)
    assert spread.half_width < 0.15


# --- what may teach


def test_a_request_that_went_as_predicted_changes_nothing() -> None:
    known = profile()
    known.observe(SERVED, NOW)
    assert known.speed.prefill_s(256, NOW) == pytest.approx(1.024)
    assert known.speed.tpot.at(256, NOW) == pytest.approx(0.02)


def test_a_slower_prompt_teaches_prefill_only_and_a_slower_answer_decode_only() -> None:
    known = profile()
    known.observe(replace(SERVED, ttft_s=1.3, total_s=1.94), NOW)
    assert known.speed.prefill_s(256, NOW) > 1.05
    assert known.speed.tpot.at(256, NOW) == pytest.approx(0.02, rel=1e-6)
    known = profile()
    known.observe(replace(SERVED, total_s=1.8), NOW)
    assert known.speed.prefill_s(256, NOW) == pytest.approx(1.024)
    assert known.speed.tpot.at(256, NOW) > 0.0201


@pytest.mark.parametrize(
    "poison",
    [
        replace(SERVED, ttft_s=20.0, total_s=25.0, clean=False),
        replace(SERVED, ttft_s=0.01, total_s=0.65, cached_tokens=256),
        replace(SERVED, ttft_s=0.01, total_s=0.65, cached_tokens=None),
        replace(SERVED, ttft_s=30.0, total_s=30.64, cached_tokens=None),
        replace(SERVED, prompt_tokens=0, total_s=9.0),
        replace(SERVED, ttft_s=0.0, total_s=0.0),
    ],
    ids=["cold, failed or cancelled", "cached", "perhaps cached", "slow and perhaps cached", "no count", "no time"],
)
def test_what_would_poison_the_averages_is_kept_out(poison: Observation) -> None:
    known = profile()
    for _ in range(10):
        known.observe(poison, NOW)
    assert known.speed.prefill_s(256, NOW) == pytest.approx(1.024)
    assert known.speed.tpot.at(256, NOW) == pytest.approx(0.02, rel=1e-6)


def test_of_a_prompt_that_was_partly_cached_only_the_rest_teaches() -> None:
    known = profile()
    known.observe(replace(SERVED, ttft_s=0.256, total_s=0.896, cached_tokens=192), NOW)
    assert known.speed.prefill_s(256, NOW) == pytest.approx(1.024, rel=0.01)
    known.observe(replace(SERVED, ttft_s=0.4, total_s=1.04, cached_tokens=192), NOW)
    assert known.speed.prefill_s(256, NOW) > 1.08


def test_a_prompt_that_is_known_to_be_new_teaches_where_the_engine_does_not_count_cached_tokens() -> None:
    known = profile()
    known.observe(replace(SERVED, ttft_s=1.4, total_s=2.04, cached_tokens=None, new_prompt=True), NOW)
    assert known.speed.prefill_s(256, NOW) > 1.05


def test_queue_and_load_times_are_no_prefill() -> None:
    known = profile()
    known.observe(replace(SERVED, ttft_s=5.024, total_s=5.664, queue_s=3.5, load_s=0.5), NOW)
    assert known.speed.prefill_s(256, NOW) == pytest.approx(1.024)


def test_a_possible_wait_in_the_same_engine_is_taken_out_by_the_engines_own_timing() -> None:
    known = profile()
    beside = {"same_decoding": 1.0}
    known.observe(replace(SERVED, ttft_s=9.0, total_s=9.9, prefill_s=1.024, decode_s=0.832, neighbours=beside), NOW)
    assert known.speed.prefill_s(256, NOW) == pytest.approx(1.024)
    before = known.to_dict()["contention"]
    known.observe(replace(SERVED, ttft_s=9.0, total_s=9.6, output_tokens=1, slots=1, neighbours=beside), NOW)
    assert known.to_dict()["contention"] == before


@pytest.mark.parametrize("slots", [None, 4])
def test_where_nobody_waits_for_a_slot_the_time_to_the_first_token_teaches_beyond_the_step_that_it_waits(
    slots: int | None,
) -> None:
    beside = {"same_decoding": 3.0}
    step_s = 0.02 * (1.0 + 3 * 0.3)  # where contention begins on shared cores
    one_token = replace(SERVED, output_tokens=1, slots=slots, neighbours=beside)
    known = profile()
    known.observe(replace(one_token, ttft_s=1.024 + 0.8 * step_s, total_s=1.1), NOW)
    assert known.contention.factor("prefill", beside) == pytest.approx(1.0)
    for _ in range(60):
        known.observe(replace(one_token, ttft_s=1.3 * 1.024 + 0.8 * step_s, total_s=1.5), NOW)
    assert known.contention.factor("prefill", beside) == pytest.approx(1.3, rel=0.03)
    assert known.speed.prefill_s(256, NOW) == pytest.approx(1.024)


def test_a_few_tokens_say_nothing_about_decode() -> None:
    known = profile()
    known.observe(replace(SERVED, output_tokens=3, total_s=2.5), NOW)
    assert known.speed.tpot.at(256, NOW) == pytest.approx(0.02)


def test_the_engines_own_decode_time_is_preferred() -> None:
    known = profile()
    known.observe(replace(SERVED, total_s=60.0, decode_s=0.64), NOW)
    assert known.speed.tpot.at(256, NOW) == pytest.approx(0.02, rel=1e-6)


def test_what_ran_beside_others_corrects_the_contention_and_not_the_speed() -> None:
    known = profile()
    beside = {"other_decoding": 1.0}
    for _ in range(60):
        known.observe(replace(SERVED, ttft_s=2.048, total_s=2.048 + 0.96, neighbours=beside), NOW)
    assert known.speed.prefill_s(256, NOW) == pytest.approx(1.024)
    assert known.contention.factor("prefill", beside) == pytest.approx(2.0, rel=0.02)
    assert known.contention.factor("decode", beside) == pytest.approx(1.5, rel=0.02)


def test_neighbours_of_one_phase_are_not_blamed_for_the_other() -> None:
    known = profile()
    beside = {"other_decoding": 0.6, "prefill_other_decoding": 1.0, "decode_other_decoding": 0.0}
    start = known.contention.factor("decode", {"other_decoding": 1.0})
    for _ in range(60):
        known.observe(replace(SERVED, ttft_s=2.048, total_s=2.688, neighbours=beside), NOW)
    assert known.contention.factor("prefill", {"other_decoding": 1.0}) == pytest.approx(2.0, rel=0.02)
    assert known.contention.factor("decode", {"other_decoding": 1.0}) == start


def test_the_spread_of_loaded_requests_is_kept_apart() -> None:
    known = profile()
    for _ in range(30):
        known.observe(SERVED, NOW)
        known.observe(replace(SERVED, ttft_s=40.0, total_s=80.0, neighbours={"other_decoding": 0.3}), NOW)
    assert known.intervals.half_width(0.0) < 0.15
    assert known.intervals.half_width(0.3) > 0.4


def test_a_profile_survives_a_store() -> None:
    known = profile()
    for _ in range(5):
        known.observe(replace(SERVED, ttft_s=1.5, total_s=2.5), NOW)
        known.observe(replace(SERVED, ttft_s=3.0, total_s=9.0, neighbours={"other_decoding": 1.0}), NOW)
    again = Profile.from_dict(json.loads(json.dumps(known.to_dict())))
    assert again.speed.prefill_s(300, 5.0) == pytest.approx(known.speed.prefill_s(300, NOW), rel=0.01)
    assert again.speed.tpot.at(300, 5.0) == pytest.approx(known.speed.tpot.at(300, NOW))
    assert again.to_dict() == known.to_dict()


@pytest.mark.parametrize("broken", [{}, {"speed": 3}, {"speed": {"samples": [[1, 2]]}}])
def test_a_profile_that_cannot_be_read_is_an_error(broken: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Profile.from_dict(broken)
