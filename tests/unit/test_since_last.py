"""The before-and-after table of one change: each cell of a benchmark beside its last record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from measurements import deployment, pair_record, record, run

from gateway.cli.since_last import change_pages, changes_json, changes_of
from measure.place import records_in
from measure.records import Kind, Record
from measure.store import Store
from policies.types import Deployment

OLD = deployment()
NEW = deployment(engine_version="b2", fingerprint="of b2")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(records_in(tmp_path))
    yield store
    store.close()


def bench(name: str, of: Deployment, factor: float, *prompts: int) -> list[Record]:
    return [
        record(
            *(run(prompt, factor * noise, total_s=2 * factor * noise) for noise in (0.99, 1.0, 1.01)),
            of=of,
            kind=Kind.GRID,
            asked_tokens=prompt,
            bench=name,
        )
        for prompt in prompts
    ]


def page(folder: Path, name: str) -> str:
    return change_pages(*changes_of(name, folder))


def test_an_update_of_the_engine_is_compared_with_the_last_record_of_each_cell(store: Store, tmp_path: Path) -> None:
    store.add(*bench("first", OLD, 2.9, 64, 256), *bench("second", OLD, 3.0, 64, 256))
    store.add(*bench("third", NEW, 1.0, 64, 256, 1024))
    told = page(tmp_path, "third")
    assert told.startswith("smol-int4, since ")
    assert "Differs in version: b1 → b2" in told
    assert any(line.startswith("TTFT") and "now faster by" in line for line in told.splitlines())
    assert "measured for the first time (1 cells)" in told


def test_with_nothing_changed_it_is_the_same_thing_measured_twice(store: Store, tmp_path: Path) -> None:
    store.add(*bench("first", OLD, 1.0, 64), *bench("second", OLD, 1.001, 64))
    told = page(tmp_path, "second")
    assert "Nothing differs" in told
    assert "no difference shown" in told


def test_two_changes_at_once_are_not_compared(store: Store, tmp_path: Path) -> None:
    store.add(*bench("first", OLD, 1.0, 64), *bench("second", replace(NEW, slots=4), 0.5, 64))
    assert "Not compared: 2 variables differ between last and now" in page(tmp_path, "second")
    assert "version: b1 → b2" in page(tmp_path, "second")
    (plain,) = changes_json(*changes_of("second", tmp_path))
    assert plain["differs"] == ["slots", "version"]


def test_cells_that_were_last_measured_in_different_states_are_told_apart(store: Store, tmp_path: Path) -> None:
    store.add(*bench("first", OLD, 1.0, 64, 256), *bench("second", NEW, 1.0, 256))
    newest = replace(NEW, engine_version="b3", fingerprint="of b3")
    store.add(*bench("third", newest, 0.5, 64, 256))
    told = [each["differs"][0] for each in changes_json(*changes_of("third", tmp_path))]
    assert [(each["before"], each["after"]) for each in told] == [("b1", "b3"), ("b2", "b3")]


def test_pairs_are_left_out(store: Store, tmp_path: Path) -> None:
    store.add(replace(pair_record(run(), run(ttft_s=4.0)), bench="first"))
    assert page(tmp_path, "first") == ""
