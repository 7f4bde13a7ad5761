"""The store beside other processes, after a kill, and when its file is damaged, old, new or of no use."""

from __future__ import annotations

import logging
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from measurements import deployment, record, run

import measure.schema
from measure.database import StoreError
from measure.store import Store

SMOL = "fingerprint of smol-int4"
LIMIT_S = 60

FAILS_BESIDE_RECORDS = "INSERT INTO records (id, fingerprint, kind, data) VALUES (1, '', '', '{}')"

WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from measurements import deployment, record, run
from measure.store import Store
store = Store(Path(sys.argv[2]))
for number in range(1, int(sys.argv[4]) + 1):
    store.add(record(run(number), of=deployment(sys.argv[3])))
    print(number, flush=True)
"""


def start_writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    tests = str(Path(__file__).parent.parent)
    command = [sys.executable, "-c", WRITER, tests, str(path), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def set_aside(path: Path) -> list[Path]:
    found = path.parent.glob(f"{path.name}.corrupt-*")
    return [aside for aside in found if not aside.name.endswith(("-wal", "-shm"))]


def damage_an_open_file(path: Path) -> None:
    other = Store(path)
    other.save_learned("anything", {})  # whoever has it open must now read it anew
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"\xff" * (len(content) - 100))
    other.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records.sqlite3"


@pytest.fixture
def kept(path: Path) -> Path:
    """A store with a hundred records, closed."""
    store = Store(path)
    store.add(*(record(run(number)) for number in range(1, 101)))
    store.close()
    return path


def test_after_sigkill_every_record_that_was_committed_is_there(path: Path) -> None:
    writer = start_writer(path, "smol-int4", 100_000)
    said = 0
    with writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            said = int(line)
            if said == 50:
                writer.send_signal(signal.SIGKILL)
    assert writer.returncode == -signal.SIGKILL
    store = Store(path)
    found = sorted(kept.prompt_tokens or 0 for kept in store.records(SMOL))
    assert found[:said] == list(range(1, said + 1))
    assert len(found) <= said + 1  # the one whose line was not printed any more
    store.add(record(run()))
    store.close()


def test_two_processes_and_this_one_write_to_a_file_that_none_has_made_yet(path: Path) -> None:
    writers = [start_writer(path, name, 60) for name in ("left", "right")]
    store = Store(path)
    for number in range(1, 61):
        store.add(record(run(number), of=deployment("middle")))
    for writer in writers:
        writer.communicate(timeout=LIMIT_S)
        assert writer.returncode == 0
    for name in ("left", "right", "middle"):
        assert len(store.records(f"fingerprint of {name}")) == 60
    store.close()


@pytest.mark.parametrize("damage", ["garbage", "cut short", "overwritten in the middle", "wrong text"])
def test_a_damaged_file_is_set_aside_with_one_line_and_a_new_one_begun(
    kept: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    content = kept.read_bytes()
    damaged = {
        "garbage": bytes(range(256)) * 64,
        "cut short": content[: len(content) // 2],
        "overwritten in the middle": content[:4096] + b"\xff" * (len(content) - 4096),
        "wrong text": b"this was a text file all along\n" * 200,
    }[damage]
    kept.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        store = Store(kept)
    assert store.records() == []
    store.add(record(run()))
    store.close()
    (aside,) = set_aside(kept)
    assert aside.read_bytes() == damaged
    assert len(caplog.records) == 1
    assert aside.name in caplog.text
    again = Store(kept)
    assert len(again.records()) == 1
    again.close()


def test_damage_that_shows_while_it_is_open_is_no_crash_either(kept: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(kept)
    damage_an_open_file(kept)
    with caplog.at_level(logging.WARNING):
        assert store.records() == []
    store.add(record(run()))
    assert len(store.records()) == 1
    store.close()
    assert len(set_aside(kept)) == 1
    assert len(caplog.records) == 1


def test_of_two_that_find_the_damage_only_one_sets_it_aside(kept: Path) -> None:
    first, second = Store(kept), Store(kept)
    damage_an_open_file(kept)
    assert first.records() == []
    first.add(record(run()))
    assert len(second.records()) == 1
    assert len(set_aside(kept)) == 1
    first.close()
    second.close()


def test_an_older_database_is_brought_up_to_date_with_its_records(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later = (*measure.schema.MIGRATIONS, ("ALTER TABLE records ADD COLUMN note TEXT NOT NULL DEFAULT 'none'",))
    monkeypatch.setattr(measure.schema, "MIGRATIONS", later)
    store = Store(kept)
    assert len(store.records(SMOL)) == 100
    store.close()
    with sqlite3.connect(kept) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(later),)
        assert connection.execute("SELECT DISTINCT note FROM records").fetchall() == [("none",)]
    connection.close()


def test_a_migration_that_fails_leaves_the_old_database_as_it_was(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = (*measure.schema.MIGRATIONS, ("ALTER TABLE records ADD COLUMN note TEXT", FAILS_BESIDE_RECORDS))
    with monkeypatch.context() as later:
        later.setattr(measure.schema, "MIGRATIONS", broken)
        in_memory = Store(kept)
        assert not in_memory.persistent
        in_memory.close()
    store = Store(kept)
    assert len(store.records(SMOL)) == 100
    assert store.persistent
    store.close()


def test_a_database_of_a_newer_version_is_left_alone(kept: Path, caplog: pytest.LogCaptureFixture) -> None:
    with sqlite3.connect(kept) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = kept.read_bytes()
    store = Store(kept)
    store.add(record(run()))
    assert len(store.records()) == 1
    assert not store.persistent
    store.close()
    assert "version 99" in caplog.text
    assert kept.read_bytes() == before


def test_where_no_file_can_be_made_it_works_in_memory_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a file").write_text("in the way")
    store = Store(tmp_path / "a file" / "records.sqlite3")
    store.add(record(run()))
    assert len(store.records()) == 1
    assert not store.persistent
    assert len(caplog.records) == 1
    store.close()


def test_a_file_that_another_process_holds_too_long_is_an_error_not_a_hang(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("measure.database.BUSY_LIMIT_S", 0.05)
    store = Store(path)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked"):
        store.add(record(run()))
    holder.execute("ROLLBACK")
    holder.close()
    store.add(record(run()))
    assert len(store.records()) == 1
    store.close()


def test_what_can_no_longer_be_read_does_not_hide_the_rest(kept: Path) -> None:
    with sqlite3.connect(kept) as connection:
        connection.execute('UPDATE records SET data = \'{"kind": "unheard of"}\' WHERE id = 1')
        connection.execute("UPDATE records SET data = 'not even JSON' WHERE id = 2")
    connection.close()
    store = Store(kept)
    store.save_learned(SMOL, {"drift": 0.1})
    with sqlite3.connect(kept) as connection:
        connection.execute("UPDATE learned SET data = 'not even JSON'")
    connection.close()
    assert store.load_learned(SMOL) is None
    assert len(store.records(SMOL)) == 98
    store.close()
