"""Intervals: they hold what they promise, widen with company, and say when a measurement is outdated."""

from __future__ import annotations

import json
import random

from fleets import NOW, deployment, samples

from policies.interval import Coverage, Intervals
from policies.predict import Predictor
from policies.turns import Turns
from policies.types import Estimate, LoadView, Observation, RequestFacts

ASK = RequestFacts("smollm2", prompt_tokens=256, expected_output=33)
HERE = deployment("a")


def serve(predictor: Predictor, slower: float, *, predicted: Estimate | None = None, now: float = NOW) -> None:
    """Serve one request, so many times slower than ``samples()`` says."""
    ttft_s, total_s = 1.024 * slower, 1.664 * slower
    predictor.observe(
        Observation(
            HERE.id,
            HERE.fingerprint,
            256,
            33,
            ttft_s,
            total_s,
            cached_tokens=0,
            predicted=predicted,
            expected_output=33,
        ),
        now,
    )


def predictor_of(measured_at: float = 1.0) -> Predictor:
    predictor = Predictor()
    predictor.measured(HERE.fingerprint, samples(250.0 * measured_at, 50.0 * measured_at))
    return predictor


def test_four_of_five_outcomes_lie_in_the_intervals_that_were_given_before() -> None:
    predictor, dice = predictor_of(), random.Random(3)
    for _ in range(600):
        estimate = predictor.estimate(ASK, HERE, LoadView(), NOW)
        serve(predictor, dice.lognormvariate(0.0, 0.12), predicted=estimate)
    coverage = predictor.coverage(HERE.fingerprint)
    assert coverage.seen == 200
    assert 0.75 <= coverage.share <= 0.85


def test_an_answer_of_another_length_than_expected_is_no_miss() -> None:
    predictor = predictor_of()
    estimate = predictor.estimate(ASK, HERE, LoadView(), NOW)
    long = Observation("a", HERE.fingerprint, 256, 321, 1.024, 1.024 + 6.4, 0, predicted=estimate, expected_output=33)
    predictor.observe(long, NOW)
    assert predictor.coverage(HERE.fingerprint) == Coverage(1, 1)


def test_who_was_not_predicted_does_not_count_for_the_coverage() -> None:
    predictor = predictor_of()
    serve(predictor, 1.0)
    assert predictor.coverage(HERE.fingerprint) == Coverage(0, 0)
    assert predictor.coverage("nobody") == Coverage(0, 0)


def test_an_interval_is_never_narrower_with_more_company() -> None:
    intervals, dice = Intervals(), random.Random(5)
    for _ in range(400):
        company = dice.choice([0.0, 0.5, 2.0, 5.0])
        intervals.learn(dice.lognormvariate(0.0, 0.05 + 0.1 * company), 1.0, company)
    widths = [intervals.half_width(company) for company in (0.0, 0.5, 2.0, 5.0)]
    assert widths == sorted(widths)
    assert widths[-1] > 3 * widths[0]


def test_a_place_without_outcomes_is_as_wide_as_its_neighbour() -> None:
    intervals = Intervals()
    for _ in range(60):
        intervals.learn(1.02, 1.0, 1.5)
    assert intervals.half_width(0.0) == intervals.half_width(1.5) == intervals.half_width(9.0) < 0.15


def test_a_measurement_that_no_longer_holds_is_called_outdated_in_words() -> None:
    predictor = predictor_of()
    for _ in range(25):
        serve(predictor, 1.05)
    assert predictor.drifted(HERE.fingerprint) is None
    for _ in range(16):
        serve(predictor, 2.0)
    assert predictor.drifted(HERE.fingerprint) == (
        "16 of the last 20 answers took 2.0 times as long as measured, outside of the interval"
    )
    predictor.measured(HERE.fingerprint, samples(125.0, 25.0))
    assert predictor.drifted(HERE.fingerprint) is None
    for _ in range(20):
        serve(predictor, 0.8)
    assert predictor.drifted(HERE.fingerprint) == (
        "20 of the last 20 answers took 2.5 times less than measured, outside of the interval"
    )
    assert predictor.drifted("nobody") is None


def test_a_few_slow_answers_are_no_drift() -> None:
    predictor = predictor_of()
    for i in range(60):
        serve(predictor, 2.5 if i % 3 == 0 else 1.0)
    assert predictor.drifted(HERE.fingerprint) is None


def test_a_correction_belongs_to_the_lengths_where_it_was_seen() -> None:
    """All lengths share most of a change at first; what stays at one length stays there."""
    predictor = predictor_of()
    for _ in range(120):
        serve(predictor, 1.2)
        short = Observation("a", HERE.fingerprint, 48, 1, 0.192, 0.192, cached_tokens=0)
        predictor.observe(short, NOW)
    profile = predictor.profile(HERE.fingerprint)
    assert profile is not None
    assert 1.15 < profile.speed.prefill_s(256, NOW) / 1.024 < 1.25
    assert 0.95 < profile.speed.prefill_s(48, NOW) / 0.192 < 1.06


def test_what_was_learned_of_trust_survives_a_store() -> None:
    predictor = predictor_of()
    for _ in range(30):
        serve(predictor, 1.8, predicted=predictor.estimate(ASK, HERE, LoadView(), NOW))
    again = Predictor()
    again.restore(HERE.fingerprint, json.loads(json.dumps(predictor.to_dict(HERE.fingerprint))))
    assert again.coverage(HERE.fingerprint) == predictor.coverage(HERE.fingerprint)
    assert again.drifted(HERE.fingerprint) == predictor.drifted(HERE.fingerprint) is not None


def test_callers_whose_prompts_go_on_are_expected_to_go_on() -> None:
    turns = Turns()
    assert turns.further("m", "agent") == 0.0
    for i in range(200):
        turns.learn("m", "agent", continues=i % 5 != 0)
        turns.learn("m", "single", continues=False)
    assert 2.5 < turns.further("m", "agent") < 6.0
    assert turns.further("m", "single") == 0.0
    for _ in range(500):
        turns.learn("m", "agent", continues=True)
    assert turns.further("m", "agent") == 8.0
    for i in range(5000):
        turns.learn("m", f"caller{i}", continues=True)
    assert turns.further("m", "agent") == 0.0
