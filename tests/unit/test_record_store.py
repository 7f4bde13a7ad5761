"""What the store keeps, gives back and forgets. On real files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from measurements import deployment, pair_record, record, run

from measure.async_store import AsyncStore
from measure.database import StoreError
from measure.place import default_path
from measure.records import Kind, Record
from measure.store import Store
from policies.types import PairSample

SMOL = "fingerprint of smol-int4"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "not there yet" / "records.sqlite3"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = Store(path)
    yield store
    store.close()


def test_a_second_start_finds_what_the_first_one_measured(path: Path) -> None:
    first = Store(path)
    first.add(record(run(100, 1.0)), record(run(500, 4.0), asked_tokens=512))
    first.close()
    second = Store(path)
    assert [sample.prefill_s for sample in second.samples(SMOL)] == [1.0, 4.0]
    assert second.persistent
    second.close()


def test_another_fingerprint_has_no_measurement(store: Store) -> None:
    store.add(record(run()))
    assert store.samples("fingerprint after an update of the engine") == []


def test_the_newest_record_of_a_cell_counts(store: Store) -> None:
    store.add(record(run(100, 1.0)))
    store.add(record(run(100, 2.0)))
    assert [sample.prefill_s for sample in store.samples(SMOL)] == [2.0]
    assert len(store.records(SMOL)) == 2


def test_a_quiet_record_counts_before_a_newer_disturbed_or_failed_one(store: Store) -> None:
    store.add(record(run(100, 1.0)))
    store.add(record(run(100, 7.0, disturbed=True)))
    store.add(record(failed="TimedOut: no answer within 60 s"))
    assert [sample.prefill_s for sample in store.samples(SMOL)] == [1.0]


def test_a_benchmark_replaces_the_quick_measurement_where_it_covers_it(store: Store) -> None:
    for length, ttft_s in ((32, 0.4), (128, 1.1), (512, 4.4)):
        store.add(record(run(length, ttft_s), asked_tokens=length))
    for length, ttft_s in ((64, 0.6), (256, 2.0)):
        store.add(record(run(length, ttft_s), asked_tokens=length, kind=Kind.GRID))
    store.add(record(run(64, 3.0), asked_tokens=64, kind=Kind.GRID, concurrency=4))
    assert [(s.prompt_tokens, s.prefill_s) for s in store.samples(SMOL)] == [
        *((32, 0.4), (64, 0.6), (256, 2.0), (512, 4.4)),
    ]
    assert [(b.concurrency, b.prompt_tokens) for b in store.batches(SMOL)] == [(1, 64), (1, 256), (4, 64)]


def test_an_imported_record_is_kept_apart_and_never_counts(store: Store) -> None:
    mine, foreign = record(run(100, 1.0)), record(run(100, 0.1))
    store.add(mine)
    assert store.add_imported(foreign, pair_record(run(), run(ttft_s=4.0))) == 2
    assert store.records(SMOL) == [mine]
    assert store.latest(SMOL) == [mine]
    assert [sample.prefill_s for sample in store.samples(SMOL)] == [1.0]
    assert store.pairs(SMOL) == []
    assert [each.foreign for each in store.imported()] == [True, True]


def test_the_same_record_is_imported_once(store: Store) -> None:
    foreign = record(run())
    assert store.add_imported(foreign, foreign) == 1
    assert store.add_imported(foreign, record(run(7))) == 1
    assert [each.prompt_tokens for each in store.imported()] == [7, 100]


def test_imported_records_push_out_each_other_only(tmp_path: Path) -> None:
    store = Store(tmp_path / "records.sqlite3", records_per_fingerprint=3, records_in_all=3, imported_records=3)
    store.add(mine := record(run()))
    store.add_imported(*(record(run(number + 1)) for number in range(9)))
    assert [each.prompt_tokens for each in store.imported()] == [9, 8, 7]
    assert store.records() == [mine]
    store.close()


def test_a_foreign_record_cannot_be_passed_off_as_measured_here(store: Store) -> None:
    with pytest.raises(ValueError):
        store.add(replace(record(run()), foreign=True))
    assert store.records() == []


def dated(made: Record, at: str) -> Record:
    return replace(made, at=f"2026-01-01T{at}:00+00:00")


def test_a_quick_measurement_after_a_benchmark_replaces_it_where_it_reaches(store: Store) -> None:
    for length, ttft_s in ((64, 0.6), (256, 2.0), (1024, 9.0)):
        store.add(dated(record(run(length, ttft_s), asked_tokens=length, kind=Kind.GRID), "10:00"))
    for length, ttft_s in ((32, 0.5), (128, 1.5), (512, 6.0)):
        store.add(dated(record(run(length, ttft_s), asked_tokens=length), "11:00"))
    assert [(s.prompt_tokens, s.prefill_s) for s in store.samples(SMOL)] == [
        *((32, 0.5), (128, 1.5), (512, 6.0), (1024, 9.0)),
    ]


def test_another_process_can_see_that_there_is_something_new(path: Path, store: Store) -> None:
    store.add(record(run(100, 1.0)))
    other = Store(path)
    seen = other.changes(SMOL)
    assert other.changes(SMOL) == seen
    store.add(record(run(100, 2.0), of=deployment("smol-fp16")))
    assert other.changes(SMOL) == seen
    store.add(record(run(100, 2.0)))
    assert other.changes(SMOL) > seen
    other.close()


def test_an_interrupted_benchmark_is_remembered_until_it_is_done(path: Path, store: Store) -> None:
    assert store.unfinished_bench() == {}
    store.save_unfinished_bench({"name": "b1"})
    other = Store(path)
    assert other.unfinished_bench() == {"name": "b1"}
    other.close()
    store.save_unfinished_bench({})
    assert store.unfinished_bench() == {}


def test_records_can_be_listed_newest_first_and_by_kind(store: Store) -> None:
    quick, pair = record(run()), pair_record(run(), run(ttft_s=4.0))
    other = record(run(), of=deployment("smol-fp16"))
    store.add(quick, pair)
    store.add(other)
    assert store.records() == [other, pair, quick]
    assert store.records(SMOL) == [pair, quick]
    assert store.records(SMOL, kind=Kind.QUICK) == [quick]
    assert store.records(limit=1) == [other]


def test_a_pair_is_remembered_and_teaches_factors_but_no_speed(store: Store) -> None:
    store.add(pair_record(run(ttft_s=1.0), run(ttft_s=4.0), neighbour="smol-fp16"))
    assert store.pairs(SMOL) == [PairSample("other", "decoding", 4.0, 1.0)]
    assert store.samples(SMOL) == []
    assert store.paired(SMOL, "fingerprint of smol-fp16")
    assert not store.paired(SMOL, SMOL)
    assert not store.paired("fingerprint of smol-fp16", SMOL)


def test_learned_state_is_given_back_and_replaced(path: Path, store: Store) -> None:
    assert store.load_learned(SMOL) is None
    store.save_learned(SMOL, {"drift": 0.1})
    store.save_learned(SMOL, {"drift": 0.2, "knots": [[32, 0.4]]})
    store.save_token_ratios({"smol": {"bytes": 4.1}, "gemma": {"bytes": 4.4}})
    store.close()
    again = Store(path)
    assert again.load_learned(SMOL) == {"drift": 0.2, "knots": [[32, 0.4]]}
    assert again.load_token_ratios() == {"smol": {"bytes": 4.1}, "gemma": {"bytes": 4.4}}
    again.close()


def test_the_oldest_records_of_a_fingerprint_go_first(tmp_path: Path) -> None:
    store = Store(tmp_path / "records.sqlite3", records_per_fingerprint=3)
    store.add(record(run(1)), record(run(2)), of_another := record(run(9), of=deployment("smol-fp16")))
    store.add(record(run(3)), record(run(4)))
    assert [kept.prompt_tokens for kept in store.records(SMOL)] == [4, 3, 2]
    assert store.records("fingerprint of smol-fp16") == [of_another]
    store.close()


def test_all_records_together_are_bounded(tmp_path: Path) -> None:
    store = Store(tmp_path / "records.sqlite3", records_in_all=5)
    for number in range(12):
        store.add(record(run(number + 1), of=deployment(f"deployment {number}")))
    assert [kept.prompt_tokens for kept in store.records()] == [12, 11, 10, 9, 8]
    store.close()


def test_the_learned_state_that_was_written_longest_ago_goes_first(tmp_path: Path) -> None:
    store = Store(tmp_path / "records.sqlite3", learned_names=2)
    for name in ("a", "b", "a", "c"):
        store.save_learned(name, {"of": name})
    assert [store.load_learned(name) for name in "abc"] == [{"of": "a"}, None, {"of": "c"}]
    store.close()


def test_without_a_path_it_is_kept_in_memory() -> None:
    store = Store(None)
    store.add(record(run()))
    assert len(store.samples(SMOL)) == 1
    assert not store.persistent
    store.close()


async def test_the_async_store_does_the_same_in_one_thread(path: Path) -> None:
    store = await AsyncStore.open(path)
    await asyncio.gather(*(store.add(record(run(n), asked_tokens=n)) for n in range(1, 21)))
    assert [sample.prompt_tokens for sample in await store.samples(SMOL)] == list(range(1, 21))
    await store.add(pair_record(run(), run(ttft_s=2.0), same=True, neighbour="smol-int4"))
    assert await store.paired(SMOL, SMOL)
    assert len(await store.pairs(SMOL)) == 1
    assert len(await store.latest(SMOL)) == 21
    assert len(await store.records(kind=Kind.QUICK)) == 20
    await store.save_learned(SMOL, {"drift": 0.1})
    await store.save_token_ratios({"smol": {"bytes": 4.1}})
    assert await store.load_learned(SMOL) == {"drift": 0.1}
    assert await store.load_token_ratios() == {"smol": {"bytes": 4.1}}
    assert store.persistent
    await store.aclose()
    await store.aclose()
    with pytest.raises(StoreError):
        await store.samples(SMOL)
    again = await AsyncStore.open(path)
    assert len(await again.samples(SMOL)) == 20
    await again.aclose()


def test_the_place_follows_the_users_choice_then_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path / "mine"))
    assert default_path() == tmp_path / "mine" / "records.sqlite3"
    monkeypatch.delenv("PACELINE_DATA")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    assert default_path() == tmp_path / "share" / "paceline" / "records.sqlite3"
    monkeypatch.setenv("XDG_DATA_HOME", "relative/paths/are/to/be/ignored")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_path() == tmp_path / "home" / ".local" / "share" / "paceline" / "records.sqlite3"
    monkeypatch.setattr("sys.platform", "darwin")
    assert default_path() == tmp_path / "home" / "Library" / "Application Support" / "Paceline" / "records.sqlite3"
