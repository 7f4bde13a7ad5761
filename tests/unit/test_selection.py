"""Selections find the records they describe, and say what to write when they find none."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from measurements import deployment, record, run

from measure.record_fields import FIELDS, identity
from measure.records import Kind, Record
from measure.selection import Selection, SelectionError
from policies.types import Precision

INT4 = record(run(), asked_tokens=64)
INT8 = record(
    run(),
    of=deployment("smol/int8", precision=Precision.INT8, scheme="Q8_0", engine="vllm", engine_version="0.19"),
    asked_tokens=256,
    kind=Kind.GRID,
    concurrency=4,
)
FAILED = record(failed="Broken: out of memory", of=deployment("big", model="qwen3-8b"), asked_tokens=1024)
RECORDS = [INT4, INT8, FAILED]


def selected(text: str) -> list[Record]:
    return Selection.parse(text).of(RECORDS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", RECORDS),
        ("model=smol", [INT4, INT8]),
        ("model=QWEN*", [FAILED]),
        ("engine=vllm", [INT8]),
        ("version=0.19", [INT8]),
        ("precision=int8", [INT8]),
        ("precision=int8|int4,model=smol", [INT4, INT8]),
        ("scheme=q8_0", [INT8]),
        ("hardware=*2 cores*", RECORDS),
        ("kind=grid", [INT8]),
        ("prompt=64..256", [INT4, INT8]),
        ("prompt=64|1024", [INT4, FAILED]),
        ("concurrency=4", [INT8]),
        ("deployment=smol/*", [INT8]),
        ("fingerprint=fingerprint of big", [FAILED]),
        ("failed=no", [INT4, INT8]),
        ("foreign=no, failed=yes", [FAILED]),
        ("context=2048,slots=2,limit=16", RECORDS),
        ("smol/int8", [INT8]),
    ],
)
def test_conditions_all_hold_and_alternatives_one_of_them(text: str, expected: list[Record]) -> None:
    assert selected(text) == expected


def test_a_record_is_found_by_its_id_or_by_how_that_begins() -> None:
    assert selected(identity(INT8)) == [INT8]
    assert selected(identity(INT8)[:5]) == [INT8]
    assert selected(f"id={identity(INT8)[:3]}") == [INT8]


def test_an_id_is_the_same_after_an_export_and_an_import_and_differs_between_records() -> None:
    again = replace(Record.from_dict(json.loads(json.dumps(INT8.to_dict()))), foreign=True)
    assert identity(again) == identity(INT8)
    later = replace(INT8, at="2030-01-01T00:00:00+00:00")
    assert len({identity(each) for each in (*RECORDS, later)}) == 4


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("since=2026-05-01", 2),
        ("since=2026-05-01T12:00", 1),
        ("since=2026-05-01T12:00:00+02:00", 2),
        ("until=2026-05-01", 2),
        ("until=2026-04-30", 1),
        ("since=2026-05-01,until=2026-05-01", 1),
        ("until=2026-05-01T10:30:00", 2),
    ],
)
def test_dates_are_whole_days_in_utc_unless_they_say_more(text: str, count: int) -> None:
    moments = ("2026-04-30T23:59:59+00:00", "2026-05-01T10:30:00+00:00", "2026-06-01T00:00:00+00:00")
    assert len(Selection.parse(text).of([replace(INT4, at=moment) for moment in moments])) == count


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("engin=vllm", "'engin' in 'engin=vllm' is no field", "Did you mean engine"),
        ("quantization=Q8_0", "no field", "Did you mean scheme?"),
        ("date=2026-01-01", "no field", "Did you mean since?"),
        ("max_tokens=32", "no field", "Did you mean limit?"),
        ("precision=in8", "precision=in8 cannot be", "Did you mean precision=int8?"),
        ("kind=quik", "kind=quik cannot be", "Did you mean kind=quick?"),
        ("prompt=long", "prompt=long cannot be", "a range like 64..1024"),
        ("since=yesterday", "since=yesterday cannot be", "a date like"),
        ("foreign=maybe", "foreign=maybe cannot be", "yes, no"),
    ],
)
def test_a_name_or_value_that_cannot_be_is_answered_with_the_near_valid_one(text: str, message: str, fix: str) -> None:
    with pytest.raises(SelectionError) as caught:
        Selection.parse(text)
    assert message in caught.value.message
    assert fix in caught.value.fix


def test_a_field_that_does_not_exist_is_answered_with_all_that_do() -> None:
    with pytest.raises(SelectionError) as caught:
        Selection.parse("zzz=1")
    assert all(name in caught.value.fix for name in FIELDS)


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("engine=lamacpp", "no record has engine=lamacpp", "On record: engine llamacpp (2), vllm (1)."),
        ("model=smol,precision=fp8", "precision=fp8 among those that fulfil the rest", "int4 (1), int8 (1)"),
        ("small", "no record has the id 'small'", "smol-int4 (1)"),
    ],
)
def test_a_selection_that_finds_nothing_says_which_condition_and_what_there_is(
    text: str, message: str, fix: str
) -> None:
    with pytest.raises(SelectionError) as caught:
        selected(text)
    assert message in caught.value.message
    assert fix in caught.value.fix


def test_without_any_record_the_way_to_some_is_told() -> None:
    with pytest.raises(SelectionError) as caught:
        Selection.parse("").of([])
    assert "paceline bench" in caught.value.fix
