"""`paceline records` and `paceline compare` on a store with a few records."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from measurements import deployment, pair_record, record, run
from typer.testing import CliRunner, Result

from gateway.cli.app import app
from gateway.cli.output import UserError
from measure.place import records_in
from measure.record_fields import identity
from measure.records import Kind, Record
from measure.store import Store
from policies.types import Deployment, Precision

INT4 = deployment()
INT8 = deployment("smol-int8", precision=Precision.INT8, scheme="Q8_0")
QWEN = deployment("qwen", model="qwen", precision=Precision.INT8, scheme="Q8_0")


def cell(of: Deployment, prompt: int, factor: float) -> Record:
    runs = [run(prompt, factor * noise, total_s=2 * factor * noise) for noise in (0.99, 1.0, 1.01)]
    return record(*runs, of=of, kind=Kind.GRID, asked_tokens=prompt, peak_memory_bytes=200 << 20)


RECORDS = [
    *(cell(INT4, prompt, 1.0) for prompt in (64, 256)),
    *(cell(INT8, prompt, 0.5) for prompt in (64, 256)),
    cell(QWEN, 64, 2.0),
    pair_record(run(), run(ttft_s=4.0)),
]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path / "data"))
    store = Store(records_in(tmp_path / "data"))
    store.add(*RECORDS)
    yield store
    store.close()


def paceline(*words: str, data: bytes | None = None) -> Result:
    return CliRunner().invoke(app, words, input=data)


def done(*words: str, data: bytes | None = None) -> str:
    result = paceline(*words, data=data)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*words: str, data: bytes | None = None) -> UserError:
    error = paceline(*words, data=data).exception
    assert isinstance(error, UserError)
    return error


def test_records_are_listed_with_their_ids() -> None:
    lines = done("records").splitlines()
    assert lines[0].split()[:4] == ["ID", "DATE", "KIND", "DEPLOYMENT"]
    assert {line.split()[0] for line in lines[1:]} == {identity(each) for each in RECORDS}


def test_where_filters_and_limit_ends_the_list() -> None:
    assert len(done("records", "--where", "model=smol,precision=int8").splitlines()) == 1 + 2
    told = done("records", "-w", "kind=grid", "-n", "2")
    assert "3 older ones are not shown: --limit 5 shows all." in told


def test_without_records_the_way_to_some_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path / "empty"))
    assert "paceline bench" in done("records")
    assert json.loads(done("records", "--json")) == {"records": []}


def test_a_filter_typed_wrongly_names_the_right_one() -> None:
    assert "Did you mean precision" in refused("records", "--where", "precison=int8").fix
    assert all(name in done("records", "--fields") for name in ("fingerprint", "deployment", "since", "until"))


def test_every_format_goes_to_standard_output_or_into_a_file(tmp_path: Path) -> None:
    assert done("records", "--format", "markdown").startswith("| Model | Precision |")
    assert len(list(csv.DictReader(io.StringIO(done("records", "--format", "csv"))))) == len(RECORDS)
    assert len(done("records", "--format", "jsonl").splitlines()) == len(RECORDS)
    done("records", "--format", "parquet", "--output", "all.parquet")
    assert (tmp_path / "all.parquet").read_bytes().startswith(b"PAR1")
    assert paceline("records", "--format", "xml").exit_code == 2
    assert "cannot be written" in refused("records", "--format", "csv", "-o", "no/such/folder.csv").message


def test_show_tells_a_record_whole_with_its_raw_samples() -> None:
    told = done("records", "show", identity(RECORDS[2])[:6])
    assert "smol-int8" in told
    assert "Q8_0" in told
    assert [line.split()[0] for line in told.splitlines()[-4:]] == ["RUN", "1", "2", "3"]
    plain = json.loads(done("records", "show", identity(RECORDS[2]), "--json"))
    assert [each["ttft_s"] for each in plain["runs"]] == [0.495, 0.5, 0.505]
    assert "names 2 records" in refused("records", "show", "smol-int8").message
    assert "The same request alone" in done("records", "show", "kind=pair")


def test_imported_records_are_marked_and_imported_once(tmp_path: Path, store: Store) -> None:
    (tmp_path / "theirs.jsonl").write_text(done("records", "--format", "jsonl", "-w", "model=qwen"))
    assert "1 records imported" in done("records", "import", "theirs.jsonl")
    assert json.loads(done("records", "import", "theirs.jsonl", "--json")) == {"read": 1, "imported": 0}
    assert len(done("records", "--where", "foreign=yes").splitlines()) == 1 + 1
    assert "imported" in done("records", "--where", "foreign=yes")
    assert len(store.records()) == len(RECORDS)


def test_an_import_is_read_from_standard_input_too() -> None:
    theirs = done("records", "--format", "jsonl").encode()
    assert json.loads(done("records", "import", "-", "--json", data=theirs))["imported"] == len(RECORDS)


def test_a_file_that_cannot_be_imported_changes_nothing(tmp_path: Path, store: Store) -> None:
    (tmp_path / "bad.jsonl").write_text(done("records", "--format", "jsonl") + '{"model": 1}\n')
    assert "line 7" in refused("records", "import", "bad.jsonl").message
    assert "cannot be read" in refused("records", "import", "missing.jsonl").message
    assert store.imported() == []


def test_a_comparison_says_what_differs_and_the_verdict() -> None:
    told = done("compare", "smol-int4", "precision=int8,model=smol")
    assert "Differs in precision: int4 Q4_1 → int8 Q8_0" in told
    assert any(line.startswith("TTFT") and "B faster by" in line for line in told.splitlines())
    assert "which is assumed" in told
    assert "beside" not in told  # the pair of smol-int4 was not asked for


def test_two_differing_variables_are_refused_with_the_list_of_both() -> None:
    error = refused("compare", "smol-int4", "qwen")
    assert "2 variables differ" in error.message
    assert [problem["where"] for problem in error.problems] == ["model:", "precision:"]
    assert "--allow precision" in error.fix


def test_an_allowed_variable_is_told_in_the_output() -> None:
    told = done("compare", "smol-int4", "qwen", "--allow", "precision")
    assert "Differs in model: smol → qwen" in told
    assert "Accepted as well: precision: int4 Q4_1 → int8 Q8_0" in told
    assert "Did you mean precision?" in refused("compare", "smol-int4", "qwen", "--allow", "precicion").fix


def test_a_selection_for_comparison_that_finds_nothing_says_what_there_is() -> None:
    assert "smol-int4" in refused("compare", "deployment=smol", "smol-int8").fix


def test_a_comparison_is_json_when_asked() -> None:
    made = json.loads(done("compare", "smol-int4", "smol-int8", "--json"))
    assert made["differs"][0]["name"] == "precision"
    assert {each["metric"] for each in made["overall"]} == {"TTFT", "decode", "total", "memory"}
    assert len(made["cells"]) == 2


def test_a_comparison_draws_both_kinds_of_pictures(tmp_path: Path) -> None:
    done("compare", "smol-int4", "smol-int8", "--plot", "a.svg", "--plot", "a.png")
    assert "smol-int8" in (tmp_path / "a.svg").read_text()
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_all_records_can_be_drawn_into_one_picture(tmp_path: Path) -> None:
    done("records", "--plot", "fleet.svg")
    drawn = (tmp_path / "fleet.svg").read_text()
    assert all(name in drawn for name in ("smol-int4", "smol-int8", "qwen"))
    assert "a run to draw" in refused("records", "--where", "kind=pair", "--plot", "pairs.svg").message


def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_is_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "FILE.svg or FILE.png" in refused("compare", "smol-int4", "smol-int8", "--plot", "a.gif").fix
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "paceline[plots]" in refused("compare", "smol-int4", "qwen", "--plot", "a.svg").fix
