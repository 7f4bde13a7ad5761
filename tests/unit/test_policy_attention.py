"""What a prompt's tokens cost for those before them: fitted to short prompts, learned from long ones."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import product

import numpy
import pytest
from fleets import NOW
from hypothesis import given
from hypothesis import strategies as st

from policies.attention import Attention
from policies.predict import Predictor
from policies.profile import Profile
from policies.speed import SpeedModel
from policies.types import Deployment, Hardware, LoadView, Observation, Precision, RequestFacts, SpeedSample

LENGTHS = (32, 128, 512, 1024)


def truth(read: float, held: float, pair_s: float = 0.8e-6) -> float:
    """Seconds of an engine that reads a token in 0.7 ms, and for each pair takes ``pair_s``."""
    return 0.01 + 0.0007 * read + pair_s * (read * held + read * read / 2)


def measured(pair_s: float = 0.8e-6, noise: float = 0.0) -> list[SpeedSample]:
    random.seed(4)
    return [SpeedSample(n, 32, truth(n, 0, pair_s) * random.gauss(1.0, noise), 0.02) for n in LENGTHS]


def served(read: int, held: int, pair_s: float = 0.8e-6) -> Observation:
    ttft_s = truth(read, held, pair_s)
    return Observation(
        "a", "f", read + held, 33, ttft_s=ttft_s, total_s=ttft_s + 0.64, cached_tokens=held, new_prompt=not held
    )


def test_what_pairs_cost_is_seen_in_the_bend_of_a_measurement() -> None:
    speed = SpeedModel(measured())
    assert speed.attention.pair_s == pytest.approx(0.8e-6, rel=0.25)
    for read, held in ((128, 1024), (128, 4096), (512, 8192), (4096, 0), (16384, 0), (2048, 2048)):
        assert speed.prefill_s(read, NOW, held) == pytest.approx(truth(read, held), rel=0.25)


def test_an_engine_whose_pairs_cost_nothing_is_soon_known_as_such() -> None:
    profile = Profile.measured(measured(0.0), (), Hardware("pc"))
    for _ in range(5):
        profile.observe(served(128, 4096, 0.0), NOW)
    assert profile.speed.prefill_s(128, NOW, 4096) == pytest.approx(truth(128, 0), rel=0.1)


def test_a_noisy_measurement_is_corrected_by_prompts_after_a_long_context() -> None:
    profile = Profile.measured(measured(noise=0.1), (), Hardware("pc"))
    for _ in range(10):
        for held in (2048, 4096):
            profile.observe(served(128, held), NOW)
    assert profile.speed.attention.pair_s == pytest.approx(0.8e-6, rel=0.2)
    assert profile.speed.prefill_s(128, NOW, 8192) == pytest.approx(truth(128, 8192), rel=0.2)


def test_short_prompts_teach_nothing_of_it() -> None:
    profile = Profile.measured(measured(), (), Hardware("pc"))
    before = profile.speed.attention.to_dict()
    for _ in range(50):
        slow = served(64, 0)
        profile.observe(replace(slow, ttft_s=2 * slow.ttft_s, total_s=slow.total_s + slow.ttft_s), NOW)
    assert profile.speed.attention.to_dict() == before


def test_one_length_is_no_bend() -> None:
    assert Attention([(500, 0.5)]).to_dict() == pytest.approx(
        {"pair_s": 0.2e-6, "variance": 0.4e-6**2}, rel=1e-6, abs=0
    )
    assert Attention([(0.0, 0.0)]).pair_s == 0.0


@pytest.mark.parametrize("points", [[(500, 0.6), (1000, 1.3)], [(30, 0.09), (110, 0.2), (520, 1.2), (1010, 2.7)]])
def test_a_bend_counts_by_how_much_of_it_was_measured(points: list[tuple[float, float]]) -> None:
    """Against the same least squares by a library: points are right within 8 %, a pair costs 2e-4 of a token ± 4e-4."""
    token_s = points[-1][1] / points[-1][0]
    rows = [[part / s / 0.08 for part in (1.0, n, n * n / 2)] for n, s in points]
    known = numpy.array([*rows, [0.0, 0.0, 1 / (4e-4 * token_s)]]) * [1.0, 1e-3, 1e-6]
    found = numpy.linalg.lstsq(known, numpy.array([*([1 / 0.08] * len(points)), 2 / 4]), rcond=None)[0]
    variance = numpy.linalg.inv(known.T @ known)[2, 2]
    fitted = Attention(points).to_dict()
    assert fitted["pair_s"] == pytest.approx(found[2] * 1e-6, rel=1e-6, abs=0)
    assert fitted["variance"] == pytest.approx(variance * 1e-12, rel=1e-6, abs=0)


def test_a_request_counts_by_how_much_of_it_were_pairs_and_by_what_is_known_already() -> None:
    attention = Attention([(500, 0.5)])
    pair_s, variance = 0.2e-6, 0.4e-6**2
    for actual_s in (1.0, 1.0, 0.4):
        attention.learn(1e6, actual_s, 0.2)
        share = 1e6 / actual_s
        gain = share * variance / (share**2 * variance + 0.2**2)
        pair_s += gain * (1 - 0.2 / actual_s - share * pair_s)
        variance *= 1 - gain * share
        assert attention.to_dict() == pytest.approx({"pair_s": pair_s, "variance": variance}, rel=1e-6, abs=0)


def test_where_the_curve_ends_the_bend_goes_on_without_a_step() -> None:
    attention = Attention([(500, 0.6), (1000, 1.3)])
    assert attention.beyond(1000, 0) == attention.beyond(400, 0) == 0.0
    assert attention.beyond(1100, 0) == pytest.approx(1100**2 / 2 - 1000**2 / 2 - 100 * 750)
    assert attention.beyond(1100, 10) == pytest.approx(attention.beyond(1100, 0) + 11000)
    assert Attention([(500, 0.6)]).beyond(700, 0) == pytest.approx(200**2 / 2)


@given(
    st.lists(st.tuples(st.integers(1, 8000), st.floats(1e-4, 100.0)), min_size=1, max_size=6, unique_by=lambda p: p[0]),
    st.lists(st.tuples(st.integers(1, 8000), st.integers(0, 8000), st.floats(1e-4, 100.0)), max_size=6),
)
def test_pairs_never_cost_less_than_nothing_nor_more_than_all_of_the_longest_prompt(
    points: list[tuple[int, float]], requests: list[tuple[int, int, float]]
) -> None:
    speed = SpeedModel(SpeedSample(n, 0, s, 0.0) for n, s in points)
    last, seconds = speed.prefill.knots[-1]
    for read, held, actual_s in requests:
        speed.observe_prefill(read, actual_s, NOW, held)
        assert 0.0 <= speed.attention.pair_s <= 2 * seconds / last**2 * (1 + 1e-9)
    for read, held in product((1, 100, 5000), repeat=2):
        assert speed.prefill_s(read, NOW, held) >= speed.prefill_s(read, NOW)


def test_an_estimate_counts_what_the_cache_holds_as_context() -> None:
    predictor = Predictor()
    predictor.measured("f", measured())
    there = Deployment("a", "m", "llamacpp", "a", "m", Precision.FP16, context=16384, fingerprint="f")
    facts = RequestFacts("m", prompt_tokens=4224, expected_output=1)
    estimate = predictor.estimate(facts, there, LoadView(cached_tokens=4096), NOW)
    assert estimate is not None
    assert estimate.prefill_s == pytest.approx(truth(128, 4096), rel=0.2)
    assert predictor.alone(there, 4224, 1, NOW) == predictor.estimate(facts, there, LoadView(), NOW)


def test_what_was_learned_of_it_is_kept_and_read_back() -> None:
    known = SpeedModel(measured())
    known.observe_prefill(128, 1.0, NOW, 4096)
    again = SpeedModel.from_dict(json.loads(json.dumps(known.to_dict())))
    assert again.attention.to_dict() == known.attention.to_dict()
    assert again.attention.pair_s != SpeedModel(measured()).attention.pair_s
    spoilt = {**known.to_dict(), "attention": {"pair_s": -1.0, "variance": 1.0}}
    with pytest.raises(ValueError, match="pair"):
        SpeedModel.from_dict(spoilt)
