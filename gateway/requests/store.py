"""The last requests in one SQLite file. For one thread; every call may raise ``StoreError``."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from measure.database import Database
from policies.diagnosis.case import Case
from policies.value import value

logger = logging.getLogger("paceline.requests")

FILE: Final = "requests.sqlite"
_EARLY_SHARE: Final = 10
"""One in so many is the most that requests may take up which were refused before they were read: whoever knocks with a
wrong key pushes nobody else's out."""

_MIGRATIONS: Final = (
    (
        """
        CREATE TABLE requests (
            id INTEGER PRIMARY KEY,
            request_id TEXT NOT NULL,
            at REAL NOT NULL,
            model TEXT NOT NULL,
            deployment TEXT NOT NULL,
            ended TEXT NOT NULL,
            total_s REAL NOT NULL,
            early INTEGER NOT NULL,
            data TEXT NOT NULL
        )
        """,
        "CREATE INDEX requests_by_request_id ON requests (request_id)",
        "CREATE INDEX requests_early ON requests (early, id)",
    ),
)
_decode: Final = msgspec.json.Decoder(Case).decode
_encode: Final = msgspec.json.Encoder().encode


@value
class Wanted:
    """Which requests a list has. ``before`` is the number of the last one of the page before."""

    limit: int = 50
    model: str | None = None
    deployment: str | None = None
    ended: str | None = None
    slower_than_s: float | None = None
    since: float | None = None
    before: int | None = None
    slowest_first: bool = False


def most_refused(keep: int) -> int:
    """Return how many requests that were refused before they were read are kept beside ``keep`` others."""
    return max(1, keep // _EARLY_SHARE)


class RequestStore:
    """Keeps the last ``keep`` requests of the file at ``path``; in memory where that cannot be used."""

    def __init__(self, path: Path, keep: int) -> None:
        self._database = Database(path, _MIGRATIONS)
        self._keep = keep

    def add(self, cases: Iterable[Case]) -> None:
        """Keep requests; the oldest beyond the bound go."""
        rows = [
            (
                each.request_id,
                each.at,
                each.model,
                each.deployment,
                each.ended.value,
                each.total_s,
                int(not each.model),
                _encode(each).decode(),
            )
            for each in cases
        ]

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany(
                "INSERT INTO requests (request_id, at, model, deployment, ended, total_s, early, data)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
            for early, most in ((1, most_refused(self._keep)), (0, self._keep)):
                connection.execute(
                    "DELETE FROM requests WHERE early = ? AND id <= coalesce("
                    "(SELECT id FROM requests WHERE early = ? ORDER BY id DESC LIMIT 1 OFFSET ?), -1)",
                    (early, early, most),
                )

        self._database.write(work)

    def find(self, request_id: str) -> Case | None:
        """Return the newest request of that id."""
        rows = self._database.run(
            lambda connection: connection.execute(
                "SELECT data FROM requests WHERE request_id = ? ORDER BY id DESC LIMIT 1", (request_id,)
            ).fetchall()
        )
        return _read(rows[0][0]) if rows else None

    def select(self, wanted: Wanted) -> list[tuple[int, Case]]:
        """Return requests with their numbers, the newest (or the slowest) first."""
        conditions = {
            "model = ?": wanted.model,
            "deployment = ?": wanted.deployment,
            "ended = ?": wanted.ended,
            "total_s > ?": wanted.slower_than_s,
            "at >= ?": wanted.since,
            "id < ?": wanted.before,
        }
        given = {condition: each for condition, each in conditions.items() if each is not None}
        where = f"WHERE {' AND '.join(given)}" if given else ""
        order = "total_s DESC, id DESC" if wanted.slowest_first else "id DESC"
        rows = self._database.run(
            lambda connection: connection.execute(
                f"SELECT id, data FROM requests {where} ORDER BY {order} LIMIT ?", (*given.values(), wanted.limit)
            ).fetchall()
        )
        return [(number, case) for number, data in rows if (case := _read(data)) is not None]

    def close(self) -> None:
        """Idempotent."""
        self._database.close()


def _read(data: str) -> Case | None:
    """Return what a row holds; ``None`` for one that a Paceline of another shape has written."""
    try:
        return _decode(data)
    except msgspec.DecodeError as error:
        logger.debug("a kept request cannot be read: %s", error)
        return None
