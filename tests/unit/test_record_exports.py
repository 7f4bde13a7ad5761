"""What is exported says all that was measured, and comes back through an import as foreign."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
from measurements import deployment, pair_record, record, run

from measure.export import Format, export
from measure.extras import MissingExtra
from measure.imports import ImportRefused, read_records
from measure.machine import Machine
from measure.record_fields import identity
from measure.records import Kind, Record
from policies.types import Precision

FULL = record(
    run(500, 0.123, engine_prefill_s=0.12, faults=("loop",)),
    run(500, 0.125),
    of=deployment("smol-int8", precision=Precision.INT8, scheme="Q8_0"),
    kind=Kind.GRID,
    asked_tokens=512,
    concurrency=4,
    peak_memory_bytes=3 << 30,
    machine=Machine(cores=2, busy="others use 1.5 cores"),
    settings={"threads": "4", "flash_attn": "on"},
)
PAIR = pair_record(run(), run(ttft_s=4.0))
FAILED = record(failed="Broken: out of memory", asked_tokens=4096)
RECORDS = [FULL, PAIR, FAILED]


def rows() -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(export(RECORDS, Format.CSV).decode())))


@pytest.mark.parametrize("form", [Format.JSONL, Format.PARQUET])
def test_whole_records_come_back_as_they_were_but_foreign(form: Format) -> None:
    assert read_records(export(RECORDS, form)) == [replace(each, foreign=True) for each in RECORDS]


def test_parquet_has_the_same_columns_whatever_the_records_hold() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    full, failed = (parquet.read_schema(io.BytesIO(export([each], Format.PARQUET))) for each in (FULL, FAILED))
    assert full == failed
    assert {"id", "runs", "ttft_s", "asked"} <= set(full.names)


def test_json_lines_hold_one_record_a_line_with_its_raw_samples() -> None:
    lines = export(RECORDS, Format.JSONL).decode().splitlines()
    assert len(lines) == 3
    assert [each["ttft_s"] for each in json.loads(lines[0])["runs"]] == [0.123, 0.125]


def test_csv_has_every_field_of_a_record_in_a_column_of_its_own() -> None:
    full, pair, failed = rows()
    assert full["id"] == identity(FULL)
    assert (full["asked_prompt_tokens"], full["asked_concurrency"], full["runs"]) == ("512", "4", "2")
    assert (full["ttft_s"], full["ttft_max_s"], full["output_normal"]) == ("0.124", "0.125", "false")
    assert full["settings"] == "flash_attn=on threads=4"
    assert full["machine_busy"] == "others use 1.5 cores"
    assert (pair["beside_neighbour"], pair["beside_activity"], full["beside_neighbour"]) == ("other", "decoding", "")
    assert (failed["failed"], failed["ttft_s"]) == ("Broken: out of memory", "")


def test_markdown_is_the_table_that_makes_records_comparable_like_beside_like() -> None:
    head, _, *lines = export([FULL, FAILED, record(run(100, 1.0))], Format.MARKDOWN).decode().splitlines()
    names = [name.strip() for name in head.strip("|").split("|")]
    first = dict(zip(names, (cell.strip() for cell in lines[0].strip("|").split("|")), strict=True))
    assert first == {
        "Model": "smol",
        "Precision": "int4 Q4_1",
        "Engine": "llamacpp b1",
        "Hardware": "a CPU with 2 cores",
        "Prompt": "100",
        "Limit": "16",
        "Concurrency": "1",
        "TTFT median": "1.00 s",
        "TTFT maximum": "1.00 s",
        "Decode": "10.0 tok/s",
        "Peak memory": "–",
        "Output normal": "yes",
        "Date": FULL.at[:10],
    }
    assert "| failed | – | – | – | Broken: out of memory |" in lines[1]
    assert "| 3.00 GiB | no: loop |" in lines[2]
    assert "busy machine" in lines[2]


def test_a_bar_in_a_name_does_not_break_the_table() -> None:
    odd = record(run(), of=deployment(model="a|b"))
    assert "| a\\|b |" in export([odd], Format.MARKDOWN).decode()


@pytest.mark.parametrize("form", list(Format))
def test_no_record_at_all_is_exported_as_an_empty_table(form: Format) -> None:
    assert isinstance(export([], form), bytes)


def _changed(change: Callable[[dict[str, object]], object]) -> bytes:
    plain = FULL.to_dict()
    change(plain)
    return export([PAIR], Format.JSONL) + json.dumps(plain).encode()


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "no record"),
        (b"id,model\n1,smol\n", "line 1 is no JSON"),
        (b"PAR1 but not really", "cannot be read as Parquet"),
        (_changed(lambda plain: plain.pop("model")), "line 2: Object missing required field `model`"),
        (_changed(lambda plain: plain.update(ttft_s="fast")), "line 2: Expected `float | null`, got `str`"),
        (_changed(lambda plain: plain.update(at="yesterday")), "line 2: 'yesterday' is no date"),
        (_changed(lambda plain: plain.update(at="2026-01-01T10:00:00")), "has no time zone"),
        (_changed(lambda plain: plain["runs"][0].update(ttft_s=-1.0)), "a run has ttft_s -1.0"),  # type: ignore[index]
    ],
)
def test_a_file_that_holds_something_else_is_refused_as_a_whole(data: bytes, complaint: str) -> None:
    with pytest.raises(ImportRefused) as caught:
        read_records(data)
    assert complaint in str(caught.value)


def test_what_a_newer_version_wrote_beside_is_left_out() -> None:
    (read,) = read_records(json.dumps({**FULL.to_dict(), "of_the_future": 1}).encode())
    assert read == replace(FULL, foreign=True)


@pytest.mark.parametrize("work", [lambda: export([FULL], Format.PARQUET), lambda: read_records(b"PAR1")])
def test_without_pyarrow_the_way_to_get_it_is_told(
    work: Callable[[], list[Record] | bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra) as caught:
        work()
    assert "Parquet needs pyarrow" in caught.value.message
    assert "paceline[parquet]" in caught.value.fix
