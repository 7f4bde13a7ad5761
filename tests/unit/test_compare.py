"""One variable may differ, and only a difference that the noise cannot explain is called one."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from measurements import deployment, pair_record, record, run

from measure.compare import Comparison, compare
from measure.compare_variables import NotComparable
from measure.compare_words import verdict
from measure.machine import Machine
from measure.records import Kind, Record, Run
from policies.types import Deployment, Hardware, Precision

INT4 = deployment()
INT8 = deployment("smol-int8", precision=Precision.INT8, scheme="Q8_0")
NOISE = (0.98, 0.99, 1.0, 1.01, 1.02)


def cell(of: Deployment = INT4, factor: float = 1.0, *, prompt: int = 128, noise: Sequence[float] = NOISE, **more: Any):
    """A record of five runs, ``factor`` times as slow as those of the others."""
    runs = [
        run(prompt, factor * each, decode_s=1.5 * factor * each, total_s=2.5 * factor * each, round=place)
        for place, each in enumerate(noise)
    ]
    return record(*runs, of=of, asked_tokens=prompt, kind=more.pop("kind", Kind.GRID), **more)


def verdicts(comparison: Comparison) -> dict[str, str]:
    return {finding.metric.name: verdict(finding, "B") for finding in comparison.overall}


def refusal(before: Sequence[Record], after: Sequence[Record], **options: Any) -> NotComparable:
    with pytest.raises(NotComparable) as caught:
        compare(before, after, **options)
    return caught.value


def differing(error: NotComparable) -> list[str]:
    return [difference.name for difference in error.differences]


def test_a_clear_difference_is_called_by_name_with_its_interval() -> None:
    made = compare([cell()], [cell(INT8, 0.5)])
    assert [str(difference) for difference in made.differs] == ["precision: int4 Q4_1 → int8 Q8_0"]
    told = verdicts(made)
    assert set(told) == {"TTFT", "decode", "total"}
    assert re.fullmatch(r"B faster by 4[56]–5[345] %", told["TTFT"])
    assert re.fullmatch(r"B faster by 8[2345]–11[5678] %", told["decode"])


def test_slower_is_told_from_the_same_side() -> None:
    assert verdicts(compare([cell()], [cell(INT8, 2.0)]))["TTFT"].startswith("B slower by 8")


def test_a_difference_within_the_noise_is_not_called_one() -> None:
    assert set(verdicts(compare([cell()], [cell(INT8, 1.005)])).values()) == {"no difference shown"}


def test_cells_that_show_the_contrary_are_counted_beside_the_verdict() -> None:
    lengths = (64, 128, 256)
    before = [cell(prompt=length) for length in lengths]
    mostly = [cell(INT8, factor, prompt=length) for length, factor in zip(lengths, (0.4, 0.5, 1.2), strict=True)]
    assert verdicts(compare(before, mostly))["TTFT"].endswith(", slower in 1 of 3 cells")
    balanced = [cell(INT8, factor, prompt=length) for length, factor in zip(lengths, (0.5, 1.0, 2.0), strict=True)]
    told = "no difference shown over all; B faster in 1, slower in 1 of 3 cells"
    assert verdicts(compare(before, balanced))["TTFT"] == told


def test_the_same_records_always_give_the_same_interval() -> None:
    first, second = (compare([cell()], [cell(INT8, 0.9)]).overall[0].change for _ in range(2))
    assert first == second


def test_two_runs_are_too_few_to_conclude_anything() -> None:
    made = compare([cell(noise=(1.0, 1.01))], [cell(INT8, 0.5, noise=(1.0, 1.01))])
    assert verdicts(made)["TTFT"] == "−50 % seen, too few runs to conclude"


def test_a_cell_with_too_few_runs_does_not_weigh_on_the_others() -> None:
    before, after = [cell(), cell(prompt=256, noise=(1.0,))], [cell(INT8, 0.5), cell(INT8, 9.0, prompt=256)]
    made = compare(before, after)
    assert verdicts(made)["TTFT"].startswith("B faster by 45–")
    assert [verdict(each.findings[0], "B") for each in made.cells][1] == "+800 % seen, too few runs to conclude"


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("model", deployment(model="qwen", fingerprint="x")),
        ("engine", deployment(engine="vllm", engine_version="0.19", fingerprint="x")),
        ("version", deployment(engine_version="b2", fingerprint="x")),
        ("precision", deployment(precision=Precision.INT8, fingerprint="x")),
        ("precision", deployment(scheme="Q4_K_M", fingerprint="x")),
        ("hardware", deployment(hardware=Hardware("there", description="a GPU"), fingerprint="x")),
        ("context", deployment(context=4096, fingerprint="x")),
        ("slots", deployment(slots=4, fingerprint="x")),
        ("fingerprint", deployment(fingerprint="the weights are others")),
    ],
)
def test_each_variable_alone_is_compared_and_two_are_refused(name: str, other: Deployment) -> None:
    assert [difference.name for difference in compare([cell()], [cell(other)]).differs] == [name]
    if name == "fingerprint":
        return
    also = "version" if name != "version" else "slots"
    two = replace(other, engine_version="b9") if also == "version" else replace(other, slots=9)
    if name == "engine":  # its version comes with it
        also, two = "slots", replace(other, slots=9)
    assert set(differing(refusal([cell()], [cell(two)]))) == {name, also}


def test_engine_settings_are_variables_by_their_own_names() -> None:
    four, eight = ({"threads": "4", "flash_attn": "on"}, {"threads": "8", "flash_attn": "on"})
    other = deployment(fingerprint="x")
    made = compare([cell(settings=four)], [cell(other, settings=eight)])
    assert [str(difference) for difference in made.differs] == ["threads: 4 → 8"]
    without = cell(other, settings={"threads": "8"})
    assert differing(refusal([cell(settings=four)], [without])) == ["flash_attn", "threads"]
    assert [d.name for d in compare([cell(settings=four)], [without], allow=["threads"]).differs] == ["flash_attn"]


def test_settings_that_a_record_does_not_tell_are_no_difference_of_their_own() -> None:
    made = compare([cell()], [cell(INT8, settings={"threads": "8"})])
    assert [difference.name for difference in made.differs] == ["precision"]


def test_sixteen_bit_formats_differ_by_class_only() -> None:
    gguf = deployment(precision=Precision.FP16, scheme="F16", fingerprint="a")
    safetensors = deployment(precision=Precision.FP16, scheme="", engine="vllm", fingerprint="b")
    assert [d.name for d in compare([cell(gguf)], [cell(safetensors)]).differs] == ["engine"]


def test_the_refusal_lists_every_variable_and_how_to_accept_it() -> None:
    other = deployment("other", model="qwen", precision=Precision.INT8, scheme="Q8_0", slots=4)
    error = refusal([cell()], [cell(other)])
    assert [str(difference) for difference in error.differences] == [
        "model: smol → qwen",
        "precision: int4 Q4_1 → int8 Q8_0",
        "slots: 2 → 4",
    ]
    assert "--allow precision --allow slots" in error.fix


def test_an_allowed_variable_may_differ_in_addition_and_is_named() -> None:
    other = deployment("other", precision=Precision.INT8, scheme="Q8_0", slots=4)
    made = compare([cell()], [cell(other)], allow=["slots"])
    assert [difference.name for difference in made.differs] == ["precision"]
    assert [str(difference) for difference in made.allowed] == ["slots: 2 → 4"]


def test_a_variable_that_does_not_exist_is_answered_with_the_near_one() -> None:
    error = refusal([cell()], [cell(INT8)], allow=["precison"])
    assert "Did you mean precision?" in error.fix


def test_a_side_that_holds_several_is_refused_unless_that_is_allowed() -> None:
    mixed = [cell(), cell(INT8, prompt=256)]
    updated = [replace(of, engine_version="b2", fingerprint=f"b2 {of.id}") for of in (INT4, INT8)]
    newer = [cell(updated[0]), cell(updated[1], prompt=256)]
    error = refusal(mixed, newer)
    assert "several of: precision" in error.message
    assert [d.name for d in compare(mixed, newer, allow=["precision"]).differs] == ["version"]


def test_the_same_thing_measured_twice_differs_in_nothing() -> None:
    made = compare([cell()], [replace(cell(factor=1.001), at="2030-01-01T00:00:00+00:00")])
    assert made.differs == ()
    assert set(verdicts(made).values()) == {"no difference shown"}


def test_a_record_cannot_be_compared_with_itself() -> None:
    assert "both selections hold the same records (1)" in refusal([shared := cell()], [shared, cell(INT8)]).message


def test_grids_are_matched_cell_by_cell_and_the_rest_is_listed() -> None:
    before = [cell(prompt=64), cell(prompt=256), cell(prompt=256, concurrency=4)]
    after = [cell(INT8, prompt=64), cell(INT8, prompt=256), cell(INT8, prompt=1024)]
    made = compare(before, after)
    assert [each.before_key.prompt for each in made.cells] == [64, 256]
    assert made.left_out == (
        "prompt 256, limit 16, concurrency 4: only in A",
        "prompt 1024, limit 16, concurrency 1: only in B",
    )


def test_a_cell_of_the_quick_measurement_stands_beside_the_same_one_of_a_benchmark() -> None:
    made = compare([cell(kind=Kind.QUICK)], [cell(INT8, kind=Kind.GRID)])
    assert len(made.cells) == 1


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("prompt", {"prompt": 64}, {"prompt": 256}),
        ("limit", {"asked_output": 32}, {"asked_output": 128}),
        ("concurrency", {"concurrency": 1}, {"concurrency": 4}),
        ("prefix", {}, {"prefix_tokens": 100}),
    ],
)
def test_what_makes_the_cells_can_be_the_variable(name: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    made = compare([cell(**before)], [cell(**after)])
    assert [difference.name for difference in made.differs] == [name]
    assert differing(refusal([cell(**before)], [cell(INT8, **after)])) == ["precision", name]


def test_one_concurrency_is_compared_with_another_over_all_prompt_lengths() -> None:
    before = [cell(prompt=length) for length in (64, 256)]
    after = [cell(factor=3.0, prompt=length, concurrency=4) for length in (64, 256)]
    made = compare(before, after)
    assert [str(difference) for difference in made.differs] == ["concurrency: 1 → 4"]
    assert [(each.before_key.prompt, each.after_key.concurrency) for each in made.cells] == [(64, 4), (256, 4)]


def test_several_concurrencies_on_one_side_are_no_single_variable() -> None:
    error = refusal([cell()], [cell(concurrency=4), cell(concurrency=8)])
    assert "several of: concurrency" in error.message


def test_grids_without_a_common_cell_are_not_compared() -> None:
    before = [cell(prompt=64, concurrency=1), cell(prompt=256, concurrency=4)]
    after = [cell(INT8, prompt=64, concurrency=4), cell(INT8, prompt=256, concurrency=1)]
    error = refusal(before, after)
    assert error.message == "there is no cell that both sides have"
    assert "prompt 64, limit 16, concurrency 1: only in A" in error.fix


def test_a_pair_is_compared_with_a_pair_beside_the_same_neighbour_only() -> None:
    alone, beside = cell(), pair_record(run(), run(ttft_s=4.0))
    assert differing(refusal([alone], [replace(beside, precision=Precision.INT8)])) == ["precision", "beside"]


def test_prompts_that_turned_out_longer_are_left_out_with_the_counts() -> None:
    longer = record(*(run(180, 1.0) for _ in range(3)), of=INT8, kind=Kind.GRID)
    made = compare([cell(), cell(prompt=256)], [longer, cell(INT8, prompt=256)])
    assert made.left_out == ("prompt 128, limit 16, concurrency 1: A read 128 tokens, B 180",)
    assert len(made.cells) == 1


def test_a_difference_that_longer_prompts_explain_is_not_shown() -> None:
    longer = record(
        *(run(148, 1.16 * each, decode_s=1.5 * each, total_s=2.9 * each) for each in NOISE), of=INT8, kind=Kind.GRID
    )
    made = compare([cell()], [longer])
    assert verdicts(made)["TTFT"] == "no difference shown"
    assert "prompts were up to 16% longer on one side: the intervals of TTFT and total cover that" in made.notes
    assert verdicts(compare([cell()], [cell(INT8, 1.16)]))["TTFT"].startswith("B slower by")
    same = compare([longer], [cell()])
    assert verdicts(same)["TTFT"] == "no difference shown"


def test_answers_of_another_length_are_compared_by_ttft_and_decode_but_not_by_total() -> None:
    short = record(
        *(run(128, 0.5, output_tokens=8, decode_s=0.7) for _ in range(3)), of=INT8, kind=Kind.GRID, asked_tokens=128
    )
    made = compare([cell()], [short])
    assert set(verdicts(made)) == {"TTFT", "decode"}
    assert "total time, since A wrote 16 tokens, B 8" in made.left_out[0]


def test_a_failed_cell_is_listed_with_its_cause() -> None:
    failed = record(failed="Broken: out of memory", of=INT8, kind=Kind.GRID, asked_tokens=4096)
    made = compare([cell()], [cell(INT8), failed])
    assert made.left_out[0] == "prompt 4096, limit 16, concurrency 1: Broken: out of memory"
    assert "out of memory" in refusal([cell()], [failed]).fix


def test_requests_of_one_round_count_as_one_observation() -> None:
    def rounds(factor: float) -> list[Run]:
        return [run(128, factor * (1 + 0.01 * i), round=i // 4) for i in range(8)]

    before, after = (
        record(*rounds(factor), of=of, kind=Kind.GRID, concurrency=4) for factor, of in ((1.0, INT4), (0.5, INT8))
    )
    assert "too few runs" in verdicts(compare([before], [after]))["TTFT"]


def test_runs_beside_live_traffic_are_left_out_where_there_are_others() -> None:
    noisy = record(*(run(128, 1.0) for _ in range(3)), run(128, 99.0, disturbed=True), kind=Kind.GRID, asked_tokens=128)
    assert compare([noisy], [cell(INT8)]).overall[0].before == 1.0


def repeats(*factors: float) -> list[Record]:
    return [
        replace(cell(factor=factor), at=f"2026-01-{day:02}T00:00:00+00:00") for day, factor in enumerate(factors, 1)
    ]


def test_what_one_measurement_shows_may_be_drift_which_is_assumed_until_it_is_known() -> None:
    before, after = [cell()], [cell(INT8, 0.94)]
    made = compare(before, after)
    assert verdicts(made)["TTFT"] == "no difference shown"
    assert "3% between two measurements, which is assumed" in made.notes[0]
    steady = compare(before, after, history=repeats(*[1.0] * 20))
    assert verdicts(steady)["TTFT"].startswith("B faster by")
    assert "TTFT 0.9%" in steady.notes[0]
    assert "19 repeats" in steady.notes[0]


def test_a_machine_that_drifts_far_needs_a_larger_difference() -> None:
    before, after = [cell()], [cell(INT8, 0.8)]
    assert verdicts(compare(before, after))["TTFT"].startswith("B faster by")
    assert verdicts(compare(before, after, history=repeats(1.0, 1.4, 0.7)))["TTFT"] == "no difference shown"


def test_a_side_that_was_measured_several_times_needs_a_smaller_difference() -> None:
    before, after = repeats(1.0, 1.001, 0.999, 1.002), [cell(INT8, 0.94)]
    once = compare(before[:1], after).overall[0].change
    often = compare(before, after).overall[0].change
    assert once.low is not None
    assert often.low is not None
    assert often.low > once.low


def test_two_measurements_of_the_same_thing_are_not_called_drift_to_explain_each_other() -> None:
    before, after = [cell()], [replace(cell(factor=2.0), at="2030-01-01T00:00:00+00:00")]
    made = compare(before, after, history=[*before, *after])
    assert verdicts(made)["TTFT"].startswith("B slower by")


def test_memory_is_compared_over_the_records_of_a_side() -> None:
    lengths = (64, 128, 256)
    before = [cell(prompt=length, peak_memory_bytes=1000 + length) for length in lengths]
    after = [cell(INT8, prompt=length, peak_memory_bytes=500 + length) for length in lengths]
    assert verdicts(compare(before, after))["memory"].startswith("B smaller by")
    assert verdicts(compare(before[:1], after[:1]))["memory"] == "−47 % seen, too few records to conclude"
    same = cell(INT8, prompt=64, peak_memory_bytes=1064)
    assert verdicts(compare(before[:1], [same]))["memory"] == "no difference seen, too few records to conclude"


def test_a_reader_is_warned_of_records_that_are_not_as_they_should_be() -> None:
    busy = cell(INT8, machine=Machine(cores=2, busy="others use 1.5 cores"), prompt=64)
    loops = record(*(run(128, faults=("loop",)) for _ in range(3)), of=INT8, kind=Kind.GRID)
    before = [replace(cell(prompt=64), foreign=True, paceline="0.0.9"), cell()]
    notes = compare(before, [busy, loops]).notes
    assert "A: 1 of 2 records: imported" in notes
    assert "B: 1 of 2 records: made on a busy machine" in notes
    assert "B: 1 of 2 records: output not normal: loop" in notes
    assert any("different versions of Paceline" in note for note in notes)


def test_a_verdict_from_a_busy_machine_or_beside_live_traffic_says_so_itself() -> None:
    busy = cell(INT8, 0.5, machine=Machine(cores=2, busy="others use 1.5 cores"))
    assert verdicts(compare([cell()], [busy]))["TTFT"].endswith(" % (made on a busy machine)")
    beside = replace(cell(INT8, 0.5), disturbed=True)
    assert verdicts(compare([cell()], [beside]))["TTFT"].endswith(" % (made beside live traffic)")


def test_a_comparison_is_plain_json() -> None:
    plain = json.loads(json.dumps(compare([cell()], [cell(INT8, 0.5)]).to_dict()))
    assert plain["differs"] == [{"name": "precision", "before": "int4 Q4_1", "after": "int8 Q8_0"}]
    ttft = plain["overall"][0]
    assert ttft["change"] == pytest.approx(-0.5)
    assert ttft["interval"][0] < -0.5 < ttft["interval"][1]
    assert plain["cells"][0]["before"]["prompt"] == 128
