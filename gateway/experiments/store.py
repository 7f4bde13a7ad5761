"""Experiments on disk: a file of their own beside the records, so that they outlive this process."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from measure.database import Database, StoreError

T = TypeVar("T")

logger = logging.getLogger("paceline.experiments")

FILE = "experiments.sqlite3"
_MIGRATIONS = (
    (
        """
        CREATE TABLE IF NOT EXISTS experiments (
            name TEXT PRIMARY KEY, experiment BLOB NOT NULL, state BLOB NOT NULL, sums BLOB NOT NULL
        )
        """,
    ),
)

Row = tuple[str, bytes, bytes, bytes]
"""Name, experiment, state, sums."""


class ExperimentStore:
    """One thread owns the file. Where it cannot be used experiments end with this process: one log line says so."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._database: Database | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="experiments")
        self._failed = False

    async def load(self) -> list[Row]:
        """Open the file and return all that is in it."""
        return await self._run(self._load) or []

    async def save(self, rows: list[Row], gone: Collection[str] = ()) -> None:
        """Keep these in the place of those of the same names, and no longer those that are gone."""
        await self._run(lambda: self._save(rows, gone))

    async def aclose(self) -> None:
        """Close the file and end the thread."""
        await self._run(self._close)
        self._thread.shutdown()

    async def _run(self, work: Callable[[], T]) -> T | None:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except StoreError as error:
            if not self._failed:
                logger.warning("experiments cannot be kept: %s", error)
            self._failed = True
            return None

    def _load(self) -> list[Row]:
        self._database = Database(self._path, _MIGRATIONS)
        return self._database.run(
            lambda connection: connection.execute("SELECT name, experiment, state, sums FROM experiments").fetchall()
        )

    def _save(self, rows: list[Row], gone: Collection[str]) -> None:
        def work(connection: sqlite3.Connection) -> None:
            connection.executemany("DELETE FROM experiments WHERE name = ?", [(name,) for name in gone])
            connection.executemany("INSERT OR REPLACE INTO experiments VALUES (?, ?, ?, ?)", rows)

        if self._database is not None:
            self._database.write(work)

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
