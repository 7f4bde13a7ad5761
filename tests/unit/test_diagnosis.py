"""The diagnosis alone: stages and predictions in, the first step that explains the excess out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.diagnosis.case import Alone, Case, Ended, Expected, Neighbour, Resources, Stages, Try
from policies.diagnosis.diagnose import diagnose
from policies.diagnosis.verdict import HEADLINES, STEPS, Cause, Symptom

EXPECTED = Expected(prefill_s=0.5, decode_s=1.5, spread=0.2, prompt_tokens=100, output_tokens=100)
ALONE = Alone(prefill_s=0.5, decode_s=1.5)
USUAL = Stages(prefill_s=0.5, decode_s=1.5)
SECONDS = st.floats(0.0, 1e4)


def case(stages: Stages = USUAL, **more: Any) -> Case:
    """Return a request that took what was predicted, but for what is said."""
    given_: dict[str, Any] = {
        "request_id": "r",
        "at": 0.0,
        "operation": "chat",
        "model": "m",
        "stages": stages,
        "total_s": stages.total_s,
        "ttft_s": 0.5,
        "deployment": "a",
        "tries": (Try(deployment="a", took_s=stages.total_s),),
        "expected": EXPECTED,
        "alone": ALONE,
        "prompt_tokens": 100,
        "output_tokens": 100,
        "local": True,
    }
    return Case(**given_ | more)


def slower(**stages: float) -> Stages:
    """Return the usual stages with some of them instead."""
    return replace(USUAL, **stages)


def verdict(of: Case) -> tuple[Symptom, int, Cause]:
    told = diagnose(of)
    return told.symptom, told.step, told.cause


@pytest.mark.parametrize(
    ("stages", "step", "cause"),
    [
        ({"read_s": 3.0}, 2, Cause.SLOW_UPLOAD),
        ({"wait_s": 3.0}, 2, Cause.GATEWAY_QUEUE),
        ({"cache_s": 3.0}, 2, Cause.CACHE),
        ({"route_s": 3.0}, 2, Cause.GATEWAY),
        ({"connect_s": 3.0}, 2, Cause.CONNECT),
        ({"queue_s": 3.0}, 2, Cause.ENGINE_QUEUE),
        ({"load_s": 3.0}, 2, Cause.COLD_LOAD),
        ({"client_s": 3.0}, 2, Cause.SLOW_READER),
        ({"decode_s": 9.0}, 6, Cause.ENGINE_SLOW),
        ({"prefill_s": 9.0}, 6, Cause.ENGINE_SLOW),
    ],
)
def test_the_stage_that_took_longer_names_the_cause(stages: dict[str, float], step: int, cause: Cause) -> None:
    assert verdict(case(slower(**stages))) == (Symptom.SLOW, step, cause)


def test_the_first_step_that_explains_half_of_it_is_the_answer_though_a_later_one_explains_more() -> None:
    told = diagnose(case(slower(wait_s=5.0, decode_s=6.0), output_tokens=100))
    assert (told.step, told.cause) == (2, Cause.GATEWAY_QUEUE)
    assert [each.step for each in told.looked] == [1, 2]


def test_what_no_step_explains_by_half_goes_to_the_one_that_explains_most() -> None:
    told = diagnose(
        case(
            slower(wait_s=1.0, prefill_s=1.9, decode_s=2.6),
            prompt_tokens=300,
            alone=Alone(prefill_s=1.9, decode_s=1.5),
        )
    )
    assert [each.step for each in told.looked] == [1, 2, 3, 4, 5, 6]
    assert told.cause is Cause.LONG_PROMPT


def test_causes_of_one_step_are_told_together() -> None:
    told = diagnose(case(slower(wait_s=2.0, queue_s=1.5)))
    assert told.cause is Cause.GATEWAY_QUEUE
    assert "queue of a" in told.text
    assert {each.what for each in told.evidence} >= {"gateway queue", "queue in the engine"}


@pytest.mark.parametrize(
    ("seen", "on_gpu", "cause"),
    [
        ({"memory_stall": 0.4}, False, Cause.MEMORY),
        ({"swapped_bytes_per_s": 5e7}, False, Cause.MEMORY),
        ({"disk_stall": 0.5}, False, Cause.DISK),
        ({"cpu_stall": 0.9}, False, Cause.CPU_BUSY),
        ({"cpu_stall": 0.9}, True, Cause.ENGINE_SLOW),
        ({"gpu_use": 0.05}, True, Cause.GPU_IDLE),
        ({"gpu_use": 0.05}, False, Cause.ENGINE_SLOW),
        ({"gpu_use": 0.9, "gpu_memory_bytes": 100, "gpu_memory_used_bytes": 99}, True, Cause.GPU_MEMORY),
        ({"gpu_use": 0.9, "gpu_slowed": True}, True, Cause.GPU_SLOWED),
        ({"memory_stall": 0.01, "disk_stall": 0.01, "cpu_stall": 0.1}, False, Cause.ENGINE_SLOW),
    ],
)
def test_what_the_machine_lacked_explains_a_slow_engine(seen: dict[str, Any], on_gpu: bool, cause: Cause) -> None:
    resources = Resources(samples=3, **seen)
    assert diagnose(case(slower(decode_s=9.0), resources=resources, on_gpu=on_gpu)).cause is cause


def test_the_state_of_this_machine_says_nothing_of_an_engine_on_another() -> None:
    resources = Resources(samples=3, memory_stall=0.9)
    assert diagnose(case(slower(decode_s=9.0), resources=resources, local=False)).cause is Cause.ENGINE_SLOW


def test_others_beside_it_explain_it_unless_they_were_predicted() -> None:
    beside = {"same_decoding": 2.0}
    assert diagnose(case(slower(decode_s=9.0), neighbours=beside)).cause is Cause.NEIGHBOURS
    known = replace(EXPECTED, company=2.0)
    assert diagnose(case(slower(decode_s=9.0), neighbours=beside, expected=known)).cause is Cause.ENGINE_SLOW


def test_others_that_were_sent_there_later_explain_it_by_name_also_where_company_is_usual() -> None:
    later = (Neighbour("b", 1.5, 1.5), Neighbour("c", 0.5, 0.0))
    crowded = replace(EXPECTED, company=2.0)
    told = diagnose(case(slower(decode_s=9.0), neighbours={"other_decoding": 2.0}, beside=later, expected=crowded))
    assert (told.step, told.cause) == (5, Cause.NEIGHBOURS)
    assert "b with 1.5 and c with 0.5" in told.text
    assert "1.5 of them sent after it" in told.text
    earlier = tuple(replace(each, later=0.0) for each in later)
    known = diagnose(case(slower(decode_s=9.0), neighbours={"other_decoding": 2.0}, beside=earlier, expected=crowded))
    assert known.cause is Cause.ENGINE_SLOW


def test_a_prompt_that_is_no_longer_held_is_no_longer_prompt() -> None:
    told = diagnose(
        case(
            slower(prefill_s=5.0),
            cached_tokens=0,
            expected=replace(EXPECTED, cached_tokens=90),
            alone=Alone(prefill_s=5.0, decode_s=1.5),
        )
    )
    assert (told.step, told.cause) == (5, Cause.PREFIX_LOST)


def test_a_short_answer_is_held_against_the_prediction_for_its_own_length() -> None:
    told = diagnose(case(Stages(prefill_s=1.9, decode_s=0.05), output_tokens=4))
    assert told.symptom is Symptom.SLOW
    assert told.cause is Cause.ENGINE_SLOW


def test_what_took_what_was_predicted_is_told_so_with_the_longest_stage() -> None:
    told = diagnose(case())
    assert (told.symptom, told.step, told.cause) == (Symptom.NONE, 0, Cause.AS_PREDICTED)
    assert "writing 100 tokens" in told.text


def test_without_a_measurement_nothing_is_called_slow_but_what_is_no_engines_fault() -> None:
    assert verdict(case(slower(decode_s=60.0), expected=None, alone=None)) == (Symptom.NONE, 6, Cause.UNMEASURED)
    waited = case(slower(wait_s=60.0), expected=None, alone=None)
    assert verdict(waited) == (Symptom.SLOW, 2, Cause.GATEWAY_QUEUE)
    told = diagnose(case(slower(decode_s=60.0), expected=None, alone=None))
    assert "nothing was predicted" in told.looked[0].found
    assert [each.expected for each in told.evidence] == [None] * len(told.evidence)


@pytest.mark.parametrize(
    ("kind", "symptom", "cause"),
    [
        ("Unreachable", Symptom.ERROR, Cause.ENGINE_DEAD),
        ("Broken", Symptom.ERROR, Cause.ENGINE_DEAD),
        ("TimedOut", Symptom.STUCK, Cause.ENGINE_SILENT),
        ("Interrupted", Symptom.ERROR, Cause.ENGINE_DIED),
        ("Busy", Symptom.ERROR, Cause.ENGINE_BUSY),
        ("Loading", Symptom.ERROR, Cause.ENGINE_LOADING),
        ("Rejected", Symptom.ERROR, Cause.ENGINE_REJECTED),
    ],
)
def test_each_fault_of_an_engine_is_told_apart(kind: str, symptom: Symptom, cause: Cause) -> None:
    tries = (Try(deployment="a", took_s=1.0, error=kind, message="it said so"),)
    told = diagnose(case(ended=Ended.FAILED, tries=tries, status=502, error="it said so", silent_s=0.1))
    assert (told.symptom, told.cause) == (symptom, cause)


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("too_many_requests", Cause.OVERLOADED),
        ("deadline", Cause.DEADLINE),
        ("stopping", Cause.STOPPING),
        ("no_deployment_ready", Cause.ENGINE_DEAD),
        ("context_length_exceeded", Cause.CONTEXT),
        ("anything", Cause.REFUSED),
    ],
)
def test_each_refusal_of_ours_is_told_apart(code: str, cause: Cause) -> None:
    told = diagnose(case(ended=Ended.REFUSED, tries=(), status=503, error="no", error_code=code))
    assert (told.symptom, told.cause) == (Symptom.ERROR, cause)


def test_an_answer_that_stopped_in_its_middle_is_stuck_and_one_that_goes_on_is_not() -> None:
    writing = case(ended=Ended.RUNNING, output_tokens=20, silent_s=0.01)
    assert verdict(writing) == (Symptom.NONE, 0, Cause.AS_PREDICTED)
    assert verdict(replace(writing, silent_s=30.0)) == (Symptom.STUCK, 2, Cause.ENGINE_SILENT)


def test_a_client_that_left_in_time_had_too_little_patience() -> None:
    left = case(Stages(prefill_s=0.3), ended=Ended.CANCELLED, ttft_s=None, output_tokens=None)
    assert verdict(left) == (Symptom.NO_OUTPUT, 0, Cause.CLIENT_LEFT)


def test_every_cause_has_a_headline() -> None:
    assert set(HEADLINES) == set(Cause)


@given(
    st.builds(Stages, **dict.fromkeys(["wait_s", "retry_s", "queue_s", "prefill_s", "decode_s", "client_s"], SECONDS)),
    st.sampled_from(Ended),
    st.sampled_from([None, EXPECTED]),
    st.sampled_from([None, ALONE, Alone(prefill_s=50.0, decode_s=0.0)]),
    st.one_of(st.none(), st.integers(0, 10**6)),
    st.sampled_from([(), (Try(deployment="a", took_s=1.0),)]),
)
def test_every_request_has_an_answer_that_explains_no_more_than_the_excess(
    stages: Stages,
    ended: Ended,
    expected: Expected | None,
    alone: Alone | None,
    tokens: int | None,
    tries: tuple[Try, ...],
) -> None:
    told = diagnose(
        case(
            stages,
            ended=ended,
            expected=expected if tries else None,
            alone=alone,
            prompt_tokens=tokens,
            output_tokens=tokens,
            tries=tries,
        )
    )
    assert told.text
    assert told.advice
    assert told.looked[0].step == 1
    assert [each.step for each in told.looked] == sorted({each.step for each in told.looked})
    assert told.step in {0, *STEPS}
    if told.excess_s is not None:
        assert told.explained_s <= max(0.0, told.excess_s) + 1e-3
