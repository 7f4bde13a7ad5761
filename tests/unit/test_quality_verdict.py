"""A verdict is about the difference on the same prompts, never about raw scores."""

from __future__ import annotations

import pytest
from replies import GOOD, OTHER, pair, pairs, prompt, said

from measure.quality.checks import Says
from measure.quality.measures import LIKELIHOOD_NATS, Measure, measures_of
from measure.quality.pairs import Pair
from measure.quality.verdict import LEAST_PAIRS, judge, means_of, notes_of, scores_of
from policies.types import Quality

LOOP = "the moon and the stars " * 8
PLENTY = 90


def measured(found: list[Pair]) -> dict[str, Measure]:
    return {measure.name: measure for measure in measures_of(found)}


def test_equal_answers_pass_however_bad_they_are() -> None:
    wrong = [pair("no idea", "no idea", number, Says(("42",))) for number in range(PLENTY)]
    quality, why = judge(wrong, 0)
    assert quality is Quality.PASSED
    assert "no harm" in why
    assert all(score.baseline == score.candidate == 0 for score in scores_of(wrong))


def test_near_ties_that_turn_out_otherwise_here_and_there_pass() -> None:
    before, after = "The moon is bright tonight and full.", "The moon is bright tonight and round."
    found = [pair(before, after, before=-0.7, after=-0.7) for _ in range(30)] + [pair(before=-0.3, after=-0.3)] * 60
    quality, why = judge(found, 0)
    assert quality is Quality.PASSED, why


def test_answers_that_become_others_early_fail_by_disagreement() -> None:
    quality, why = judge(pairs((60, GOOD, OTHER), (30, GOOD, GOOD)), 0)
    assert quality is Quality.FAILED
    assert "words that differ" in why


def test_a_candidate_that_is_less_sure_of_the_baselines_tokens_fails_by_likelihood_alone() -> None:
    sure = [pair(before=-0.3, after=-0.3 - LIKELIHOOD_NATS / 2) for _ in range(PLENTY)]
    unsure = [pair(before=-0.3, after=-0.3 - LIKELIHOOD_NATS * 1.5) for _ in range(PLENTY)]
    assert judge(sure, 0)[0] is Quality.PASSED
    quality, why = judge(unsure, 0)
    assert quality is Quality.FAILED
    assert why.startswith("log-probability lost per token: 0.0750 nats")


def test_lost_answers_fail_and_as_many_gained_ones_make_up_for_them() -> None:
    right, wrong = "It is 42.", "It is 41."

    def answers(*counts: tuple[int, str, str]) -> list[Pair]:
        texts = [(before, after) for count, before, after in counts for _ in range(count)]
        return [pair(before, after, n, Says(("42",))) for n, (before, after) in enumerate(texts)]

    lost = measured(answers((20, right, wrong), (70, right, right)))["answers"]
    assert not lost.passed
    assert lost.value == pytest.approx(20 / 90)
    assert measured(answers((4, right, wrong), (4, wrong, right), (82, right, right)))["answers"].passed


def test_answers_that_become_loops_fail() -> None:
    quality, why = judge(pairs((20, GOOD, LOOP), (70, GOOD, GOOD)), 0)
    assert quality is Quality.FAILED
    assert "became loops" in why


def test_a_baseline_that_loops_as_well_is_no_fault_of_the_candidate() -> None:
    assert measured(pairs((60, LOOP, LOOP), (30, GOOD, GOOD)))["loops"].passed


@pytest.mark.parametrize("candidate", [f"{GOOD} {OTHER}", "The ferry leaves"])
def test_answers_of_another_length_fail_in_both_directions(candidate: str) -> None:
    length = measured(pairs((PLENTY, GOOD, candidate)))["length"]
    assert not length.passed
    assert (length.value > 1) == (len(candidate) > len(GOOD))


def test_doubt_is_no_pass_and_is_told_as_such() -> None:
    found = pairs((3, GOOD, LOOP), (27, GOOD, GOOD))
    loops = measured(found)["loops"]
    assert not loops.passed
    assert not loops.shown
    quality, why = judge(found, 0)
    assert quality is Quality.FAILED
    assert "cannot be ruled out" in why


def test_what_is_shown_is_told_before_what_is_only_in_doubt() -> None:
    found = pairs((26, GOOD, OTHER), (4, GOOD, LOOP))
    assert judge(found, 0)[1].startswith("words that differ")


def test_too_few_prompts_are_no_verdict() -> None:
    quality, why = judge(pairs((LEAST_PAIRS - 1, GOOD, GOOD)), 0)
    assert quality is Quality.UNTESTED
    assert str(LEAST_PAIRS) in why


def test_a_candidate_that_leaves_many_prompts_unanswered_stays_untested() -> None:
    assert judge(pairs((PLENTY, GOOD, GOOD)), 4)[0] is Quality.PASSED
    quality, why = judge(pairs((PLENTY, GOOD, GOOD)), 10)
    assert quality is Quality.UNTESTED
    assert "10 of 100 prompts" in why


def test_without_log_probabilities_the_other_measures_decide() -> None:
    assert "likelihood" not in measured(pairs((PLENTY, GOOD, GOOD)))
    assert "likelihood" in measured([pair(before=-0.3, after=-0.3)])


def test_a_long_and_a_short_answer_count_by_their_tokens() -> None:
    short, long = pair("yes", before=-0.1, after=-1.1), pair("word " * 99, before=-0.1, after=-0.1)
    assert measured([short, long])["likelihood"].value == pytest.approx(0.01)


def test_empty_answers_on_both_sides_can_be_judged() -> None:
    assert judge(pairs((PLENTY, "", "")), 0)[0] is Quality.PASSED


def test_scores_and_means_are_told_by_category() -> None:
    good = Pair(prompt(1, Says(("a",)), category="turns"), said("a b c"), said("a b d"))
    bad = Pair(prompt(2, Says(("z",)), category="tools"), said("z"), said("y"))
    assert [(each.category, each.prompts, each.baseline, each.candidate) for each in scores_of([good, bad])] == [
        ("turns", 1, 1, 1),
        ("tools", 1, 1, 0),
    ]
    means = means_of([good, bad])
    assert means is not None
    assert (means.identical, means.prefix) == (0.0, pytest.approx(1 / 3))
    assert means_of([]) is None


def test_another_template_is_pointed_out() -> None:
    from dataclasses import replace

    same = [pair() for _ in range(5)]
    counted = [
        replace(
            each, baseline=replace(each.baseline, prompt_tokens=20), candidate=replace(each.candidate, prompt_tokens=31)
        )
        for each in same
    ]
    assert notes_of(same) == ()
    assert "templates" in notes_of(counted)[0]


def test_values_are_told_in_their_unit() -> None:
    found = measured([pair(before=-0.3, after=-0.3)])
    assert found["answers"].tell(0.125) == "12.5%"
    assert found["length"].limit == "×0.80 to ×1.25"
    assert found["likelihood"].limit == "at most 0.0500 nats"
