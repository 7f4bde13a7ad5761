"""The verdict of a soak: what makes a deployment unstable, and what does not."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from measure.soak_plan import LENGTHS, TOO_LONG, plan
from measure.soak_trial import Asked, Role, Trial
from measure.soak_verdict import SoakVerdict, judge

MIB = 1 << 20


def soaked(count: int = 50, **changed: Any) -> list[Trial]:
    """What a soak of a healthy engine gives: TTFT by prompt length with 5 % of noise, memory that does not grow.

    A value in ``changed`` is a function of the trial's number that says a field, or None to leave it.
    """
    random = Random(1)
    trials = []
    for number, asked in enumerate(plan(count, context=4096)):
        fields: dict[str, Any] = {"memory_bytes": 500 * MIB + random.randrange(MIB)}
        if asked.role in (Role.ANSWER, Role.REPEATED):
            ttft_s = (0.02 + 0.002 * asked.prompt_tokens) * random.gauss(1.0, 0.05)
            fields |= {"ttft_s": ttft_s, "answer": f"answer to {asked.prompt_tokens}", "output_tokens": 32}
        for name, function in changed.items():
            if (value := function(number, fields)) is not None:
                fields[name] = value
        trials.append(Trial(number=number, asked=asked, **fields))
    return trials


def verdict(trials: list[Trial], planned: int = 50, **more: Any) -> SoakVerdict:
    return judge(trials, planned, **more)


def test_an_engine_that_answers_everything_alike_is_stable() -> None:
    found = verdict(soaked())
    assert found.stable, found.reasons
    assert (found.requests, found.planned, found.reasons) == (50, 50, ())
    assert (found.repeated, found.same, found.cancelled, found.invalid) == (10, 10, 4, 5)
    assert found.ttft is not None
    assert found.ttft.low < 0.0 < found.ttft.high
    assert found.memory_bytes is not None


def test_one_failure_is_enough_and_failures_are_told_by_kind() -> None:
    def failing(number: int, fields: dict[str, Any]) -> str | None:
        return {7: "timed out", 20: "interrupted", 31: "timed out"}.get(number)

    found = verdict(soaked(failure=failing))
    assert not found.stable
    assert found.reasons == ("3 of 50 failed: timed out 2×, interrupted 1×",)
    assert [failure.number for failure in found.failures] == [7, 20, 31]
    assert found.to_dict()["kinds"] == {"timed out": 2, "interrupted": 1}


def test_a_time_to_the_first_token_that_grows_is_noticed_whatever_the_prompt_lengths() -> None:
    found = verdict(soaked(ttft_s=lambda number, fields: fields.get("ttft_s", 0.0) * 1.01**number or None))
    assert not found.stable
    assert found.ttft is not None
    assert found.ttft.change == pytest.approx(1.01**48 - 1, abs=0.12)
    assert found.reasons[0].startswith("the time to the first token grew by ")


def noisy(count: int, noise: float, level: float = 1.0) -> list[Trial]:
    """A soak in which TTFT does not drift, but is anything."""
    random = Random(3)

    def ttft(number: int, fields: dict[str, Any]) -> float | None:
        return level * fields["ttft_s"] * random.lognormvariate(0.0, noise) if "ttft_s" in fields else None

    return soaked(count, ttft_s=ttft)


def test_a_drift_whose_interval_allows_a_doubling_is_not_shown_either_way() -> None:
    found = verdict(noisy(50, noise=0.5))
    assert not found.stable
    assert not found.conclusive
    assert found.ttft is not None
    assert found.ttft.low < 0.0 < 1.0 < found.ttft.high
    (reason,) = found.reasons
    assert reason.startswith("whether the time to the first token grows is not shown")
    assert reason.endswith(f"about {found.needed} requests would tell")


def test_as_many_requests_as_an_unclear_verdict_asks_for_give_a_clear_one() -> None:
    needed = verdict(noisy(50, noise=0.5)).needed
    assert 50 < needed < 1000
    found = verdict(noisy(2 * needed, noise=0.5), planned=2 * needed)
    assert found.stable, found.reasons
    assert found.needed == 0


def test_an_unclear_drift_of_a_few_milliseconds_does_not_matter() -> None:
    assert verdict(noisy(50, noise=0.5, level=0.01)).stable


def test_what_others_did_meanwhile_stands_with_an_unclear_drift() -> None:
    (reason,) = verdict(noisy(50, noise=0.5), busy="other processes used 1.5 of 2 cores").reasons
    assert "while other processes used 1.5 of 2 cores; about" in reason


def test_a_failure_decides_however_unclear_the_drift_is() -> None:
    trials = noisy(50, noise=0.5)
    trials[7] = Trial(number=7, asked=trials[7].asked, failure="broken")
    found = verdict(trials)
    assert found.conclusive
    assert found.needed == 0


def test_some_milliseconds_more_are_no_drift() -> None:
    def tiny(number: int, fields: dict[str, Any]) -> float | None:
        return 0.002 * 1.02**number if "ttft_s" in fields else None

    assert verdict(soaked(ttft_s=tiny)).stable


def test_a_time_that_grows_while_others_use_the_machine_proves_nothing() -> None:
    trials = soaked(ttft_s=lambda number, fields: fields.get("ttft_s", 0.0) * 1.01**number or None)
    found = verdict(trials, busy="other processes used 1.5 of 2 cores")
    assert not found.stable
    assert not found.conclusive
    assert found.reasons[0].endswith("while other processes used 1.5 of 2 cores")
    assert verdict(soaked(), busy="other processes used 1.5 of 2 cores").stable


def test_one_slow_request_in_ten_is_no_drift() -> None:
    def hiccup(number: int, fields: dict[str, Any]) -> float | None:
        return fields["ttft_s"] * 8 if "ttft_s" in fields and number % 10 == 5 else None

    assert verdict(soaked(ttft_s=hiccup)).stable


def test_prompt_lengths_that_grow_are_no_drift() -> None:
    trials = sorted(soaked(), key=lambda trial: trial.asked.prompt_tokens)
    renumbered = [
        Trial(number=i, asked=t.asked, ttft_s=t.ttft_s, answer=t.answer, memory_bytes=t.memory_bytes)
        for i, t in enumerate(trials)
    ]
    assert verdict(renumbered).stable


def test_memory_that_keeps_growing_is_a_leak() -> None:
    found = verdict(soaked(memory_bytes=lambda number, fields: 500 * MIB + number * 8 * MIB))
    assert not found.stable
    assert found.reasons == ("its memory grew by 14% over requests made before, to 892 MiB",)


def test_a_cache_that_grows_with_every_new_prompt_is_no_leak() -> None:
    assert verdict(soaked(memory_bytes=lambda number, fields: 500 * MIB + min(number, 33) * 40 * MIB)).stable


def test_a_small_process_may_grow_by_some_megabytes() -> None:
    assert verdict(soaked(memory_bytes=lambda number, fields: 40 * MIB + number * MIB // 4)).stable


def test_memory_that_cannot_be_seen_says_nothing() -> None:
    trials = [Trial(number=t.number, asked=t.asked, ttft_s=t.ttft_s, answer=t.answer) for t in soaked()]
    found = verdict(trials)
    assert found.stable
    assert found.memory is None


@pytest.mark.parametrize(("different", "stable"), [(0, True), (2, True), (3, False), (10, False)])
def test_most_answers_to_one_greedy_prompt_have_to_be_the_same(different: int, stable: bool) -> None:
    seen = 0

    def answer(number: int, fields: dict[str, Any]) -> str | None:
        nonlocal seen
        if plan(50, 4096)[number].role is not Role.REPEATED:
            return None
        seen += 1
        return f"another one, {number}" if seen <= different else "the answer"

    found = verdict(soaked(answer=answer))
    assert found.stable is stable
    assert found.same == max(10 - different, 1)


def test_a_few_requests_prove_nothing() -> None:
    found = verdict(soaked()[:12])
    assert found.reasons == ("only 12 requests were made, 24 are needed",)
    assert (found.conclusive, found.needed) == (False, 24)
    assert verdict(soaked()).conclusive


def test_a_failure_is_conclusive_however_few_requests_there_were() -> None:
    found = verdict(soaked(failure=lambda number, fields: "broken" if number == 2 else None)[:6])
    assert found.conclusive
    assert not found.stable


def test_an_engine_that_did_not_come_back_is_not_stable() -> None:
    assert not verdict(soaked(), gone=True).stable


def test_invalid_requests_that_were_answered_are_counted_and_no_failure() -> None:
    def took(number: int, fields: dict[str, Any]) -> int | None:
        return 1 if number == 9 else None

    found = verdict(soaked(output_tokens=took))
    assert found.stable
    assert (found.invalid, found.took) == (5, 1)


def test_the_verdict_is_plain_values_for_the_store() -> None:
    plain = verdict(soaked()).to_dict()
    assert plain["stable"] is True
    assert plain["ttft"].keys() == {"change", "low", "high"}


def test_the_plan_mixes_lengths_streams_cancellations_and_invalid_requests() -> None:
    asked = plan(50, context=4096)
    answers = [each for each in asked if each.role is Role.ANSWER]
    assert {each.prompt_tokens for each in answers} == set(LENGTHS)
    assert {each.stream for each in answers} == {True, False}
    assert {each.early for each in asked if each.role is Role.CANCELLED} == {True, False}
    assert len({each.fault for each in asked if each.role is Role.INVALID}) == 3
    for role in (Role.CANCELLED, Role.INVALID):
        followers = [asked[i + 1].role for i, each in enumerate(asked[:-1]) if each.role is role]
        assert set(followers) == {Role.ANSWER}


def test_the_plan_keeps_to_the_context_but_for_the_prompt_that_is_too_long() -> None:
    asked = plan(50, context=256)
    for each in asked:
        assert each.fault == TOO_LONG or each.prompt_tokens + each.output_tokens <= 320
    assert max(each.prompt_tokens for each in asked if each.fault == TOO_LONG) == 512


def test_no_giant_prompt_is_made_for_a_giant_context() -> None:
    assert all(each.prompt_tokens <= 512 for each in plan(50, context=1_000_000))
    assert all(each.fault != TOO_LONG for each in plan(50, context=None))


def test_an_invalid_request_says_what_is_wrong_with_it() -> None:
    assert all(each.fault for each in plan(50, 4096) if each.role is Role.INVALID)
    assert not any(each.fault for each in plan(50, 4096) if each.role is not Role.INVALID)
    assert isinstance(plan(1, None)[0], Asked)


def test_the_last_third_says_again_what_the_middle_third_said() -> None:
    asked = plan(50, context=4096)
    again = [each for each in asked if each.again]
    assert asked[34:] == again
    assert [each.again for each in again] == [16] * 16
    assert [(a.role, a.prompt_tokens, a.fault) for a in again] == [
        (b.role, b.prompt_tokens, b.fault) for b in asked[18:34]
    ]
