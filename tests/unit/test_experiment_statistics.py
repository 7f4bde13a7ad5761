from __future__ import annotations

import math
from random import Random

import pytest

from benchmarks.experiments.laws import Law
from benchmarks.experiments.trial import Trial, run
from policies import experiment_intervals as intervals
from policies import experiment_shares as shares
from policies.experiment import Arm, Experiment, Sticky, assign, is_drawn, weights
from policies.experiment_evidence import Evidence
from policies.experiment_guardrails import Complaint, Guardrail
from policies.experiment_intervals import Moments
from policies.experiment_metrics import Outcome
from policies.experiment_shares import Tally

ARMS = (Arm("a", ("x",)), Arm("b", ("y",)))


def moments(values: list[float]) -> Moments:
    found = Moments()
    for value in values:
        found.add(value)
    return found


def test_units_are_split_by_the_weights_and_always_the_same_way() -> None:
    units = [str(number) for number in range(4000)]
    first = [assign("e", unit, (0.75, 0.25)) for unit in units]
    assert first == [assign("e", unit, (0.75, 0.25)) for unit in units]
    assert sum(first) / len(first) == pytest.approx(0.25, abs=0.03)


def test_another_experiment_splits_the_same_units_in_another_way() -> None:
    units = [str(number) for number in range(4000)]
    both = sum(assign("e", unit, (0.5, 0.5)) and assign("f", unit, (0.5, 0.5)) for unit in units)
    assert both / len(units) == pytest.approx(0.25, abs=0.03)


def test_a_ramp_takes_nobody_back() -> None:
    units = [str(number) for number in range(2000)]
    for share, more in ((0.05, 0.25), (0.25, 0.5), (0.5, 1.0)):
        before = {unit for unit in units if assign("e", unit, weights(2, share))}
        after = {unit for unit in units if assign("e", unit, weights(2, more))}
        assert before < after


def test_what_a_stopped_arm_had_goes_to_the_first() -> None:
    assert weights(3, 0.5) == (0.5, 0.25, 0.25)
    left = weights(3, 0.5, [2])
    assert left == (0.75, 0.25, 0.0)
    assert {assign("e", str(number), left) for number in range(1000)} == {0, 1}


def test_a_random_share_is_the_same_each_time() -> None:
    drawn = [is_drawn("e", str(number), 0.1) for number in range(4000)]
    assert sum(drawn) / len(drawn) == pytest.approx(0.1, abs=0.02)
    assert not any(is_drawn("e", str(number), 0.0) for number in range(100))


def test_moments_that_are_corrected_are_those_of_the_corrected_values() -> None:
    found = moments([1.0, 2.0, 4.0])
    found.replace(2.0, 7.0)
    expected = moments([1.0, 7.0, 4.0])
    assert (found.n, found.mean, found.variance) == pytest.approx((3, expected.mean, expected.variance))


def test_nothing_is_said_of_fewer_than_thirty() -> None:
    few = [0.0, 1.0] * 14
    assert intervals.difference([(moments(few), moments([v + 100 for v in few]))], 0.05) == intervals.UNKNOWN


def test_the_interval_shrinks_around_a_true_difference_and_holds_it() -> None:
    random = Random(1)
    widths = []
    for n in (100, 1000, 4000):
        first = moments([random.gauss(0.0, 1.0) for _ in range(n)])
        second = moments([random.gauss(0.3, 1.0) for _ in range(n)])
        found = intervals.difference([(first, second)], 0.05)
        assert found.low < 0.3 < found.high
        widths.append(found.high - found.low)
    assert widths == sorted(widths, reverse=True)
    assert found.shown == 1


def test_a_change_of_weights_together_with_slower_traffic_shows_no_difference() -> None:
    random = Random(2)
    strata = []
    for level, n_first, n_second in ((0.0, 1900, 100), (3.0, 1000, 1000)):  # the second arm came with the slow hours
        strata.append(
            (
                moments([random.gauss(level, 0.5) for _ in range(n_first)]),
                moments([random.gauss(level, 0.5) for _ in range(n_second)]),
            )
        )
    assert intervals.difference(strata, 0.05).shown == 0


def test_the_requests_that_it_takes_are_those_after_which_the_interval_is_as_narrow() -> None:
    n = math.ceil(intervals.times_more(0.25 / 0.36, 0.1, 0.025))
    assert intervals.half_width(n * 0.25 / 0.36, 0.025) <= 0.1
    assert intervals.half_width(0.98 * n * 0.25 / 0.36, 0.025) > 0.1


def test_few_errors_show_no_difference_and_many_do() -> None:
    few = shares.difference([(Tally(30, 0), Tally(30, 2))], 0.05)
    assert few.low < 0.0 < few.high
    many = shares.difference([(Tally(200, 2), Tally(200, 60))], 0.05)
    assert many.low > 0.1
    assert many.low < many.value < many.high


def test_evidence_of_several_stages_adds_up() -> None:
    once = [(Tally(40, 0), Tally(40, 20))]
    assert not shares.is_worse_by(once, 0.05, 1e-5)
    assert shares.is_worse_by(once * 3, 0.05, 1e-5)


def test_a_split_as_it_was_meant_is_balanced_and_another_is_not() -> None:
    assert not shares.is_unbalanced(shares.log_imbalance((510, 490), (0.5, 0.5)))
    assert shares.is_unbalanced(shares.log_imbalance((600, 400), (0.5, 0.5)))
    assert shares.log_imbalance((1000, 0), (1.0, 0.0)) == pytest.approx(0.0)


def outcome(arm: int, unit: str = "", **seen: float | bool) -> Outcome:
    return Outcome(0, arm, unit, **seen)  # type: ignore[arg-type]


def test_a_users_many_requests_are_one_observation_where_users_are_kept_to_an_arm() -> None:
    evidence = Evidence(Experiment("e", "m", ARMS, sticky=Sticky.USER))
    evidence.begin(weights(2, 0.5))
    for _ in range(100):
        evidence.expose(1, "alice")
        evidence.add(outcome(1, "alice", total_s=2.0))
    compared = {each.metric: each for each in evidence.compare(1)}
    assert compared["total"].counts == (0, 1)
    assert compared["total"].values[1] == pytest.approx(2.0)
    assert evidence.stages[0].seen[1].requests == 100


def test_an_arm_that_fails_is_complained_of_and_one_that_is_alike_is_not() -> None:
    evidence = Evidence(Experiment("e", "m", ARMS))
    evidence.begin(weights(2, 0.5))
    for number in range(60):
        evidence.add(outcome(0))
        evidence.add(outcome(1, failed=number % 2 == 0))
    assert evidence.complaint(0) is None
    assert evidence.complaint(1) == Complaint(Guardrail.ERRORS, "30 errors in 60 requests, 0 in 60 of the first arm")


def test_a_slow_first_token_is_complained_of_beyond_the_factor_that_is_allowed() -> None:
    random = Random(3)
    for factor, complains in ((1.3, False), (4.0, True)):
        evidence = Evidence(Experiment("e", "m", ARMS))
        evidence.begin(weights(2, 0.5))
        for _ in range(200):
            evidence.add(outcome(0, ttft_s=math.exp(random.gauss(0.0, 0.4))))
            evidence.add(outcome(1, ttft_s=factor * math.exp(random.gauss(0.0, 0.4))))
        assert bool(evidence.complaint(1)) is complains


def test_alike_arms_are_hardly_ever_told_apart_and_a_bad_one_is_stopped() -> None:
    usual = Law()
    said = [run(Trial("alike", usual, usual, 300), Random(seed)) for seed in range(60)]
    assert sum(1 for end in said if end.verdict_at or end.stopped_at) <= 6
    bad = [run(Trial("bad", usual, Law(errors=0.5), 400), Random(seed)) for seed in range(10)]
    assert all(0 < end.stopped_at <= 400 for end in bad)


FEWEST_WITH_FAULTS = 10


def promised(evidence: Evidence, guardrail: Guardrail) -> dict[float, int | None]:
    return {each.worse: each.within for each in evidence.promises(1) if each.guardrail is guardrail}


def test_arms_that_are_much_worse_are_stopped_within_the_stated_number_of_requests() -> None:
    usual, random = Law(), Random(4)
    seen = Evidence(Experiment("e", "m", ARMS))
    seen.begin(weights(2, 0.5))
    for number in range(400):  # what the first arm has shown so far: hardly an error, and how much its TTFT varies
        seen.add(usual.draw(random, 0, 0, str(number), 0.0))
    errors, ttft = promised(seen, Guardrail.ERRORS), promised(seen, Guardrail.TTFT)
    stated = {Law(errors=0.51): errors[0.5], Law(errors=1.0): errors[1.0], Law(ttft_s=1.2): ttft[3.0]}
    for law, within in stated.items():
        assert within is not None
        ends = [run(Trial("worse", usual, law, 2 * within), Random(seed)).stopped_at for seed in range(40)]
        late = sum(not 0 < end <= within for end in ends)
        assert late <= 4, (law, within, sorted(ends))
        assert min(ends) > within / 8, "the number says nothing"


def test_nothing_is_promised_of_a_ttft_that_has_not_been_seen_nor_of_an_arm_that_gets_nothing() -> None:
    evidence = Evidence(Experiment("e", "m", ARMS))
    evidence.begin(weights(2, 0.5))
    assert set(promised(evidence, Guardrail.TTFT).values()) == {None}
    alone = promised(evidence, Guardrail.ERRORS)[1.0]
    faults = promised(evidence, Guardrail.FAULTS)[1.0]
    assert faults is not None
    assert faults >= 10 * FEWEST_WITH_FAULTS  # one answer in ten is looked at
    evidence.begin(weights(2, 0.05))
    few = promised(evidence, Guardrail.ERRORS)[1.0]
    evidence.begin(weights(2, 1.0))
    assert alone is not None
    assert few is not None
    assert 5 * alone < few
    assert set(promised(evidence, Guardrail.ERRORS).values()) == {None}
