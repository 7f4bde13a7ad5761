"""An SQLite file that is always usable: made, migrated, shared between processes, set aside when it is damaged."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from measure.schema import Migrations, TooNew, migrate

BUSY_LIMIT_S = 5.0
"""How long a call waits for another process's transaction."""

_POLL_S = 0.02
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_MEMORY = ":memory:"

_log = logging.getLogger(__name__)
T = TypeVar("T")
Identity = tuple[int, int] | None


class StoreError(Exception):
    """The store could not do it now: the disk is full, or another process held the file too long."""


class Damaged(Exception):
    """The file is no database, or a broken one."""


class Database:
    """One connection, for one thread, with the tables of ``migrations`` (the records', when left out).

    Without a ``path``, or where the file cannot be used, it lives in memory.

    A damaged file is renamed to NAME.corrupt-DATE, with one log line, and a new one begun: when it is opened and at any
    later time. Transactions are short, so that several processes share the file; with WAL, what was committed survives
    the death of the process.
    """

    def __init__(self, path: Path | None, migrations: Migrations | None = None) -> None:
        self.path = path
        self._migrations = migrations
        self._identity: Identity = None
        self._connection = self._open()

    @property
    def persistent(self) -> bool:
        """False when what is stored ends with this process."""
        return self.path is not None

    def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return what ``work`` does. Raises ``StoreError``."""
        try:
            return work(self._connection)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise StoreError(str(error)) from error
            damage = str(error)
        self._connection.close()
        self._connection = self._open(damage)
        try:
            return work(self._connection)
        except sqlite3.Error as error:
            raise StoreError(str(error)) from error

    def write(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Do ``work`` in one transaction: all of it or nothing. Raises ``StoreError``."""

        def transaction(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            try:
                work(connection)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

        self.run(transaction)

    def close(self) -> None:
        """Idempotent."""
        self._connection.close()

    def _open(self, damage: str = "") -> sqlite3.Connection:
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                if damage:
                    self._replace(damage)
                try:
                    return self._connect(self.path)
                except Damaged as error:
                    self._replace(str(error))
                    return self._connect(self.path)
            except (OSError, sqlite3.Error, TooNew, Damaged) as error:
                _log.warning("%s cannot be used (%s); records are kept in memory for this run", self.path, error)
                self.path = None
        connection = sqlite3.connect(_MEMORY, isolation_level=None)
        migrate(connection, self._migrations)
        return connection

    def _connect(self, path: Path) -> sqlite3.Connection:
        # Before it is opened, since another process may replace it then; once more below, should it be new.
        self._identity = _identity(path)
        connection = sqlite3.connect(path, timeout=BUSY_LIMIT_S, isolation_level=None)
        try:
            _use_wal(connection)
            # In WAL mode this loses nothing when a process dies; a power cut may take the last commits, never the file.
            connection.execute("PRAGMA synchronous = NORMAL")
            finding = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if finding != "ok":
                raise Damaged(finding)
            migrate(connection, self._migrations)
            self._identity = _identity(path)
        except BaseException as error:
            connection.close()
            if isinstance(error, sqlite3.DatabaseError) and _is_damage(error):
                raise Damaged(str(error)) from error
            raise
        return connection

    def _replace(self, cause: str) -> None:
        """Set the damaged file aside, unless another process has done so already."""
        if self.path is None or _identity(self.path) != self._identity:
            return
        date = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
        aside = self.path.with_name(f"{self.path.name}.corrupt-{date}")
        # The companions first: after the file itself is gone, another process may begin a new one with new companions.
        for suffix in ("-wal", "-shm", ""):
            with suppress(FileNotFoundError):
                self.path.with_name(self.path.name + suffix).rename(aside.with_name(aside.name + suffix))
        _log.warning("%s was damaged (%s): set aside as %s, starting without records", self.path, cause, aside.name)


def _use_wal(connection: sqlite3.Connection) -> None:
    end = time.monotonic() + BUSY_LIMIT_S
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return  # where it stays another mode (some network file systems), that one is safe too
        except sqlite3.OperationalError as error:
            # SQLite's busy limit does not cover this switch: two processes that make the file at once meet here.
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= end:
                raise
            time.sleep(_POLL_S)


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    # The low byte is the kind; the others say where it was noticed.
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _DAMAGE


def _identity(path: Path) -> Identity:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
