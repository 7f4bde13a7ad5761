"""A record says what was measured, so that it can be compared and learned from."""

from __future__ import annotations

import json

import pytest
from measurements import deployment, pair_record, record, run

from measure.records import Record, RecordError
from policies.types import PairSample, SpeedSample


def test_a_record_survives_the_way_through_json() -> None:
    for made in (
        record(run(), run(faults=("empty",), engine_prefill_s=0.9)),
        record(failed="TimedOut: no answer within 60 s"),
        pair_record(run(), run(ttft_s=4.0)),
    ):
        assert Record.from_dict(json.loads(json.dumps(made.to_dict()))) == made


def test_medians_and_the_maximum_are_taken_over_the_runs() -> None:
    made = record(run(90, 1.0), run(100, 1.2), run(110, 9.0))
    assert (made.prompt_tokens, made.ttft_s, made.ttft_max_s) == (100, 1.2, 9.0)


def test_decode_speed_counts_the_tokens_after_the_first() -> None:
    made = record(run(output_tokens=16, decode_s=1.5))
    assert made.tpot_s == pytest.approx(0.1)
    assert made.decode_per_s == pytest.approx(10.0)


def test_an_answer_of_one_token_has_no_decode_speed_and_teaches_none() -> None:
    made = record(run(output_tokens=1, decode_s=0.0))
    assert made.decode_per_s is None
    assert made.speed is None


def test_runs_beside_live_traffic_do_not_count_when_there_are_quiet_ones() -> None:
    made = record(run(ttft_s=1.0), run(ttft_s=7.0, disturbed=True))
    assert made.ttft_s == made.ttft_max_s == 1.0
    assert not made.disturbed
    assert len(made.runs) == 2


def test_a_record_made_only_beside_live_traffic_says_so() -> None:
    made = record(run(ttft_s=7.0, disturbed=True))
    assert made.disturbed
    assert made.ttft_s == 7.0


def test_prompt_tokens_that_the_engine_had_cached_are_not_counted_as_read() -> None:
    assert record(run(100, 1.0, cached_tokens=20)).speed == SpeedSample(80, 16, 1.0, 0.1)


def test_a_failed_record_keeps_its_cause_and_teaches_nothing() -> None:
    made = record(failed="Broken: out of memory")
    assert made.failed == "Broken: out of memory"
    assert made.speed is None
    assert made.output_normal is None


def test_output_that_is_not_normal_is_named_on_the_record() -> None:
    made = record(run(), run(faults=("loop",)), run(faults=("loop", "empty")))
    assert made.output_normal is False
    assert made.faults == ("loop", "empty")


def test_a_pair_record_gives_the_factors_on_the_time_alone_and_no_speed() -> None:
    made = pair_record(run(ttft_s=1.0, decode_s=1.5), run(ttft_s=4.0, decode_s=7.5), activity="prefilling")
    assert made.pair == PairSample("other", "prefilling", 4.0, pytest.approx(5.0))
    assert made.speed is None


def test_the_record_names_who_was_measured_and_when() -> None:
    made = record(run(), of=deployment("a-model-at-int4"))
    assert (made.deployment, made.engine, made.engine_version, made.precision, made.scheme) == (
        "a-model-at-int4",
        "llamacpp",
        "b1",
        "int4",
        "Q4_1",
    )
    assert made.hardware == "a CPU with 2 cores"
    assert made.at.endswith("+00:00")
    assert made.paceline


@pytest.mark.parametrize("plain", [{}, [], {"kind": "quick"}, record(run()).to_dict() | {"ttft_s": "soon"}])
def test_what_is_no_record_is_refused(plain: object) -> None:
    with pytest.raises(RecordError):
        Record.from_dict(plain)


def test_fields_of_a_later_version_do_not_harm() -> None:
    made = record(run())
    assert Record.from_dict(made.to_dict() | {"phase_of_the_moon": 3}) == made
