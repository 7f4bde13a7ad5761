"""The figures of the benchmark on real engines, from answers whose times are stated."""

from __future__ import annotations

import pytest

from benchmarks.routing_real.client import Sent
from benchmarks.routing_real.figures import (
    errors,
    groups,
    regret,
    repeated,
    report,
    right,
    right_of_one_round,
    total_errors,
)
from benchmarks.routing_real.phases import Case, Phase
from benchmarks.routing_real.shapes import PROMPT_TOKENS, Shape, shapes


def sent(deployment: str = "a", *, predicted_s: float = 1.0, actual_s: float = 1.0, prompt: int = 100) -> Sent:
    shape = Shape(0, prompt, 16, stream=True)
    return Sent(
        shape, deployment, prompt_tokens=prompt, total_s=actual_s, predicted_total_s=predicted_s, predicted_ttft_s=0.5
    )


def test_errors_are_relative_and_their_median_has_a_sign() -> None:
    found = errors([(1.1, 1.0), (1.2, 1.0), (0.9, 1.0)])
    assert found is not None
    assert (found.count, found.close) == (3, pytest.approx(2 / 3))
    assert (found.median, found.bias) == (pytest.approx(0.1), pytest.approx(0.1))


def test_requests_without_a_prediction_or_a_time_are_left_out() -> None:
    assert errors([(0.0, 1.0), (1.0, 0.0)]) is None
    assert total_errors([]) is None


def test_a_choice_within_ten_percent_of_the_fastest_is_right() -> None:
    cases = [
        Case(sent("a"), [{"a": 1.0, "b": 2.0}]),
        Case(sent("a"), [{"a": 1.09, "b": 1.0}]),
        Case(sent("a"), [{"a": 1.5, "b": 1.0}]),
    ]
    phase = Phase("any", cases=cases)
    assert right(phase) == pytest.approx(2 / 3)
    assert regret(phase) == pytest.approx((1.0 + 1.09 + 1.5) / 3.0 - 1.0)
    assert right(Phase("none")) is None


def test_the_same_request_again_says_how_well_it_can_be_predicted_at_all() -> None:
    case = Case(sent("a"), [{"a": 1.0}], again={"a": [sent(actual_s=s) for s in (1.0, 1.0, 1.2)], "b": [sent("b")]})
    total, first = repeated(Phase("one", cases=[case]))
    assert total is not None
    assert (total.count, total.median) == (3, pytest.approx(1.1 / 1.0 - 1.0))
    assert first is None, "none was streamed"


def test_candidates_that_were_asked_several_times_count_by_their_medians() -> None:
    rounds = [{"a": 1.0, "b": 0.9, "c": 5.0}, {"a": 1.0, "b": 4.0, "c": 5.0}, {"a": 1.3, "b": 3.0}]
    case = Case(sent("a"), rounds)
    assert case.costs == {"a": 1.0, "b": 3.0}, "c did not answer once"
    assert case.regret == 0.0
    # The first round's fastest is b, and costs (4 + 3) / 2 in the others, a (1 + 1.3) / 2; the others' is a.
    assert case.regrets_of_one_round == [pytest.approx(3.5 / 1.15 - 1.0), 0.0, 0.0]
    assert right_of_one_round(Phase("one", cases=[case])) == pytest.approx(2 / 3)
    assert right_of_one_round(Phase("one", cases=[Case(sent("a"), rounds[:1])])) is None


def test_groups_are_by_deployment_prompt_length_and_kind() -> None:
    names = dict(groups([sent("a", prompt=30), sent("b", prompt=900)]))
    assert [s.deployment for s in names["prompt 0 to 63"]] == ["a"]
    assert [s.deployment for s in names["prompt 640 or more"]] == ["b"]
    assert len(names["streamed"]) == 2
    assert "not streamed" not in names


def test_the_report_holds_what_was_sent_without_its_text() -> None:
    (plain,) = report([Phase("one", sent=[sent()], cases=[Case(sent(), [{"a": 1.0}])])])
    assert plain["requests"] == 1
    assert plain["total"]["median"] == 0.0
    assert plain["sent"][0]["text"] is None
    assert plain["cases"] == [
        {"request": 0, "chosen": "a", "costs_s": {"a": 1.0}, "rounds_s": [{"a": 1.0}], "disturbed": False}
    ]


def test_variants_of_a_request_are_as_long_and_differ_from_their_first_word_on() -> None:
    shape = shapes(1)[0]
    assert len(shape.text(0)) == len(shape.text(1))
    assert shape.text(0)[0] != shape.text(1)[0]


def test_shapes_are_the_same_in_every_run_and_cover_all_lengths() -> None:
    assert shapes(60, follow_ups=True) == shapes(60, follow_ups=True)
    asked = shapes(60, follow_ups=True)
    assert sum(shape.follow_up for shape in asked) == 10
    lengths = sorted(shape.prompt_tokens for shape in asked)
    low, high = PROMPT_TOKENS
    assert lengths[0] < 2 * low
    assert lengths[-1] > high / 2


def test_what_other_programs_disturbed_is_told_apart() -> None:
    quiet, noisy = sent("a"), sent("b")
    noisy.others_cores = 1.0
    phase = Phase("any", [quiet, noisy], [Case(quiet, [{"a": 1.0}]), Case(quiet, [{"a": 1.0}], disturbed=True)])
    assert phase.undisturbed().sent == [quiet]
    assert len(phase.undisturbed().cases) == 1
    assert report([phase])[0]["disturbed"] == 1
