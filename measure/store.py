"""Records and learned state, kept between runs in one SQLite file."""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from measure.database import Database
from measure.records import Cell, Kind, Record, RecordError
from measure.verdicts import Judged
from policies.types import BatchSample, PairSample, SpeedSample

RECORDS_PER_FINGERPRINT = 500
RECORDS_IN_ALL = 20_000
IMPORTED_RECORDS = 5_000
LEARNED_NAMES = 500
"""Bounds. Past them the oldest records go, and the learned state that was written longest ago."""

_SPEED = "speed"
_TOKENS = "tokens"
_BENCH = "bench"

_log = logging.getLogger(__name__)


class Store:
    """What was measured, by fingerprint. For one thread; every call is short and may raise ``StoreError``.

    Safe with several processes on one file. See ``Database`` for what happens to a damaged or unusable file.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        records_per_fingerprint: int = RECORDS_PER_FINGERPRINT,
        records_in_all: int = RECORDS_IN_ALL,
        imported_records: int = IMPORTED_RECORDS,
        learned_names: int = LEARNED_NAMES,
    ) -> None:
        """Open the file at ``path`` (see ``measure.place.default_path``), made when missing; memory when ``None``."""
        self._database = Database(path)
        self._per_fingerprint = records_per_fingerprint
        self._in_all = records_in_all
        self._imported_records = imported_records
        self._learned_names = learned_names

    @property
    def persistent(self) -> bool:
        """False when what is stored ends with this process."""
        return self._database.persistent

    def add(self, *records: Record) -> None:
        """Keep records made on this machine, all or none; the oldest beyond the bounds go.

        Raises ``ValueError`` for a foreign one: those go to ``add_imported``.
        """
        if any(record.foreign for record in records):
            raise ValueError("a foreign record is none of this machine's")
        rows = [(record.fingerprint, record.kind.value, _encode(record.to_dict())) for record in records]

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT INTO records (fingerprint, kind, data) VALUES (?, ?, ?)", rows)
            for fingerprint in {row[0] for row in rows}:
                connection.execute(
                    "DELETE FROM records WHERE fingerprint = ? AND id NOT IN"
                    " (SELECT id FROM records WHERE fingerprint = ? ORDER BY id DESC LIMIT ?)",
                    (fingerprint, fingerprint, self._per_fingerprint),
                )
            # Ids only grow, so this keeps at most that many without counting them.
            connection.execute("DELETE FROM records WHERE id <= (SELECT max(id) FROM records) - ?", (self._in_all,))

        self._database.write(work)

    def records(self, fingerprint: str | None = None, *, kind: Kind | None = None, limit: int = 1000) -> list[Record]:
        """Return at most ``limit`` records of this machine, the newest first."""
        wanted = {"fingerprint": fingerprint, "kind": kind and kind.value}
        conditions = {f"{name} = ?": value for name, value in wanted.items() if value is not None}
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        rows = self._database.run(
            lambda connection: connection.execute(
                f"SELECT data FROM records {where} ORDER BY id DESC LIMIT ?", (*conditions.values(), limit)
            ).fetchall()
        )
        return [record for row in rows if (record := _decode(row[0])) is not None]

    def add_imported(self, *records: Record) -> int:
        """Keep records as foreign ones, all or none, and return how many were new; the oldest beyond the bound go."""
        data = [_encode(replace(record, foreign=True).to_dict()) for record in records]
        rows = [(hashlib.sha256(each.encode()).hexdigest(), each) for each in data]
        before = self._imported_newest()

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT OR IGNORE INTO imported (digest, data) VALUES (?, ?)", rows)
            connection.execute(
                "DELETE FROM imported WHERE id <= (SELECT max(id) FROM imported) - ?", (self._imported_records,)
            )

        self._database.write(work)
        return self._imported_newest() - before

    def imported(self) -> list[Record]:
        """Return the foreign records, the last imported first."""
        rows = self._database.run(
            lambda connection: connection.execute("SELECT data FROM imported ORDER BY id DESC").fetchall()
        )
        return [record for row in rows if (record := _decode(row[0])) is not None]

    def latest(self, fingerprint: str) -> list[Record]:
        """Return the record that counts for each cell, shortest prompt first: the newest that succeeded without live
        traffic beside it, else the newest that succeeded, else the newest."""
        cells: dict[Cell, Record] = {}
        for record in self.records(fingerprint, limit=self._per_fingerprint):
            kept = cells.get(record.cell)
            if kept is None or _worth(record) > _worth(kept):
                cells[record.cell] = record
        return sorted(cells.values(), key=lambda record: (record.kind, record.prompt_tokens or 0))

    def samples(self, fingerprint: str) -> list[SpeedSample]:
        """Return what is known of a deployment's speed alone, shortest prompt first; empty when it was not measured."""
        records = [record for record in self.latest(fingerprint) if record.speed is not None]
        samples = [sample for record in _of_one_piece(records) if (sample := record.speed) is not None]
        return sorted(samples, key=lambda sample: (sample.prompt_tokens, sample.output_tokens))

    def batches(self, fingerprint: str) -> list[BatchSample]:
        """Return what is known of equal requests at the same time, fewest first; empty without a benchmark."""
        samples = [sample for record in self.latest(fingerprint) if (sample := record.batch) is not None]
        return sorted(samples, key=lambda sample: (sample.concurrency, sample.prompt_tokens, sample.output_tokens))

    def changes(self, fingerprint: str) -> int:
        """Return a number that grows with each record of a fingerprint, whichever process added it."""
        query = "SELECT coalesce(max(id), 0) FROM records WHERE fingerprint = ?"
        return int(self._database.run(lambda connection: connection.execute(query, (fingerprint,)).fetchone()[0]))

    def pairs(self, fingerprint: str) -> list[PairSample]:
        """Return what is known of a deployment beside its neighbours."""
        return [sample for record in self.latest(fingerprint) if (sample := record.pair) is not None]

    def paired(self, fingerprint: str, neighbour: str) -> bool:
        """True when ``fingerprint`` was measured beside the fingerprint ``neighbour`` (its own: within one engine)."""
        return any(
            record.pair is not None and record.beside is not None and record.beside.fingerprint == neighbour
            for record in self.latest(fingerprint)
        )

    def save_learned(self, fingerprint: str, state: Mapping[str, Any]) -> None:
        """Keep what the predictor has learned of a fingerprint: plain JSON values."""
        self._save(_SPEED, {fingerprint: state})

    def load_learned(self, fingerprint: str) -> dict[str, Any] | None:
        """Return the state last saved for a fingerprint."""
        return self._load(_SPEED, fingerprint).get(fingerprint)

    def save_token_ratios(self, ratios: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep what is known of bytes per token, by model: plain JSON values."""
        self._save(_TOKENS, ratios)

    def load_token_ratios(self) -> dict[str, dict[str, Any]]:
        """Return what was last saved, for each model."""
        return self._load(_TOKENS)

    def save_verdict(self, about: Judged, fingerprint: str, details: Mapping[str, Any]) -> None:
        """Keep what was found about a fingerprint, in place of what was found earlier: see ``Judged``."""
        self._save(about.value, {fingerprint: details})

    def load_verdicts(self, about: Judged) -> dict[str, dict[str, Any]]:
        """Return the last verdicts of one kind with their details, by fingerprint."""
        return self._load(about.value)

    def save_unfinished_bench(self, state: Mapping[str, Any]) -> None:
        """Keep what a benchmark needs to go on from where it was interrupted: plain JSON values; {} when it is done."""
        self._save(_BENCH, {_BENCH: state})

    def unfinished_bench(self) -> dict[str, Any]:
        """Return what was last saved of an interrupted benchmark, {} when there is none."""
        return self._load(_BENCH, _BENCH).get(_BENCH, {})

    def close(self) -> None:
        """Idempotent."""
        self._database.close()

    def _imported_newest(self) -> int:
        newest = "SELECT coalesce(max(id), 0) FROM imported"
        return int(self._database.run(lambda connection: connection.execute(newest).fetchone()[0]))

    def _save(self, topic: str, states: Mapping[str, Mapping[str, Any]]) -> None:
        rows: Sequence[tuple[str, str, str]] = [(topic, name, _encode(state)) for name, state in states.items()]

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany(
                "INSERT OR REPLACE INTO learned (topic, name, data, turn)"
                " VALUES (?, ?, ?, (SELECT coalesce(max(turn), 0) + 1 FROM learned))",
                rows,
            )
            connection.execute(
                "DELETE FROM learned WHERE topic = ? AND name NOT IN"
                " (SELECT name FROM learned WHERE topic = ? ORDER BY turn DESC LIMIT ?)",
                (topic, topic, self._learned_names),
            )

        self._database.write(work)

    def _load(self, topic: str, name: str | None = None) -> dict[str, dict[str, Any]]:
        query, parameters = "SELECT name, data FROM learned WHERE topic = ?", [topic]
        if name is not None:
            query, parameters = f"{query} AND name = ?", [topic, name]
        rows = self._database.run(lambda connection: connection.execute(query, parameters).fetchall())
        return {row[0]: plain for row in rows if (plain := _plain(row[1])) is not None}


def _encode(plain: Mapping[str, Any]) -> str:
    return msgspec.json.encode(plain).decode()


def _plain(data: str) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError as error:
        _log.debug("a stored state is left out: %s", error)
        return None


def _decode(data: str) -> Record | None:
    try:
        return Record.from_dict(msgspec.json.decode(data))
    except (RecordError, msgspec.DecodeError) as error:
        # Written by another version: of no use here, and no reason to lose the others.
        _log.debug("a stored record is left out: %s", error)
        return None


def _of_one_piece(records: Sequence[Record]) -> list[Record]:
    """Leave out what another kind of measurement has covered since: a machine's speed drifts, so that a curve made of
    both would have kinks. Beyond the lengths of the newer one, the older is all that there is."""
    if not records:
        return []
    newest = max(records, key=lambda record: (record.at, record.kind is Kind.GRID)).kind
    covered = [record.asked.prompt_tokens for record in records if record.kind is newest]
    return [
        record
        for record in records
        if record.kind is newest or not min(covered) <= record.asked.prompt_tokens <= max(covered)
    ]


def _worth(record: Record) -> int:
    if record.failed:
        return 0
    return 1 if record.disturbed else 2
