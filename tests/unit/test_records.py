"""A record says what was measured, so that it can be compared and learned from."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from measurements import deployment, pair_record, record, run

from measure.machine import Machine
from measure.records import Kind, Record, RecordError
from policies.types import BatchSample, PairSample, SpeedSample


def test_a_record_survives_the_way_through_json() -> None:
    for made in (
        record(run(), run(faults=("empty",), engine_prefill_s=0.9)),
        record(failed="TimedOut: no answer within 60 s"),
        pair_record(run(), run(ttft_s=4.0)),
        record(
            run(round=0),
            run(round=1, begun_s=2.5),
            kind=Kind.GRID,
            machine=Machine(cores=2),
            settings={"n_batch": "128"},
        ),
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


def test_the_runs_of_a_pair_count_by_their_medians_on_both_sides() -> None:
    made = pair_record(run(ttft_s=1.0, decode_s=1.5), run(ttft_s=4.0, decode_s=7.5))
    assert made.beside is not None
    alone = (*made.beside.alone, run(ttft_s=1.2, decode_s=1.5), run(ttft_s=60.0, decode_s=90.0))
    pair = replace(made, beside=replace(made.beside, alone=alone)).pair
    assert pair == PairSample("other", "decoding", pytest.approx(4.0 / 1.2), pytest.approx(5.0))
    assert replace(made, beside=replace(made.beside, alone=())).pair is None


def test_a_pair_in_one_batch_teaches_no_wait_for_a_step_which_is_predicted_by_itself() -> None:
    alone, beside = run(ttft_s=0.1, decode_s=1.5), run(ttft_s=0.3, decode_s=3.0)  # steps of 0.1 s and of 0.2 s
    made = pair_record(alone, beside, same=True).pair
    assert made is not None
    assert made.prefill_factor == pytest.approx((0.3 - 0.8 * 0.2) / 0.1)
    other = pair_record(alone, beside).pair
    assert other is not None
    assert other.prefill_factor == pytest.approx(3.0)


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


NEWER_FIELDS = (
    *("ttft_spread", "decode_spread", "throughput_per_s", "engine_queue_s", "engine_load_s", "disagreement"),
    *("peak_gpu_memory_bytes", "machine", "settings", "bench", "foreign"),
)


def test_a_record_of_the_first_version_stays_readable() -> None:
    plain = record(run()).to_dict()
    for name in NEWER_FIELDS:
        del plain[name]
    for name in ("begun_s", "round", "finish_reason"):
        del plain["runs"][0][name]
    for name in ("prefix_tokens", "forced"):
        del plain["asked"][name]
    old = Record.from_dict(plain)
    assert old.speed == SpeedSample(100, 16, 1.0, 0.1)
    assert (old.machine, old.settings, old.disagreement, old.foreign) == (None, {}, "", False)


def test_a_spread_is_the_range_of_the_runs_in_parts_of_their_median() -> None:
    made = record(run(ttft_s=0.9, decode_s=1.5), run(ttft_s=1.0, decode_s=1.5), run(ttft_s=1.2, decode_s=3.0))
    assert made.ttft_spread == pytest.approx(0.3)
    assert made.decode_spread == pytest.approx(1.0)
    assert record(run()).ttft_spread is None


def test_a_cell_of_a_grid_alone_is_a_speed_and_one_with_company_a_batch() -> None:
    alone = record(run(), kind=Kind.GRID)
    four = record(run(ttft_s=3.0), kind=Kind.GRID, concurrency=4)
    assert alone.speed == SpeedSample(100, 16, 1.0, 0.1)
    assert four.speed is None
    assert alone.batch == BatchSample(1, 100, 16, 1.0, 0.1)
    assert four.batch == BatchSample(4, 100, 16, 3.0, 0.1)


def test_what_a_prefix_cache_saved_is_no_speed() -> None:
    warm = record(run(100, 0.2, cached_tokens=90), kind=Kind.GRID, prefix_tokens=90)
    assert (warm.speed, warm.batch) == (None, None)


def test_an_imported_record_teaches_nothing() -> None:
    for made in (record(run(), kind=Kind.GRID), pair_record(run(), run(ttft_s=4.0))):
        foreign = replace(made, foreign=True)
        assert (foreign.speed, foreign.batch, foreign.pair) == (None, None, None)


def test_throughput_counts_all_requests_of_a_round_from_the_first_start_to_the_last_end() -> None:
    first = [run(output_tokens=20, total_s=4.0), run(output_tokens=20, total_s=3.5, begun_s=0.5)]
    second = [run(output_tokens=20, total_s=2.0, begun_s=10.0, round=1)]
    made = record(*first, *second, kind=Kind.GRID, concurrency=2)
    assert made.throughput_per_s == pytest.approx(10.0)


def test_engine_timings_that_differ_from_what_the_client_saw_are_told() -> None:
    same = record(run(ttft_s=1.0, decode_s=1.5, engine_prefill_s=0.9, engine_decode_s=1.4))
    assert same.disagreement == ""
    other = record(run(ttft_s=1.0, decode_s=1.5, engine_prefill_s=0.5, engine_decode_s=1.0))
    assert other.disagreement == "TTFT 1.000 s, the engine says 0.500 s; decode 1.500 s, the engine says 1.000 s"


def test_queue_and_load_are_part_of_what_the_client_waited_for() -> None:
    made = record(run(ttft_s=3.0, engine_queue_s=1.0, engine_load_s=1.0, engine_prefill_s=0.9))
    assert (made.engine_queue_s, made.engine_load_s, made.disagreement) == (1.0, 1.0, "")


def test_a_wait_that_the_engine_does_not_tell_is_no_disagreement() -> None:
    waited = run(ttft_s=3.0, engine_prefill_s=0.9)
    assert record(waited, kind=Kind.GRID, concurrency=4).disagreement == ""
    assert record(waited, kind=Kind.GRID).disagreement


def test_a_few_milliseconds_are_no_disagreement() -> None:
    assert record(run(ttft_s=0.030, engine_prefill_s=0.015)).disagreement == ""
