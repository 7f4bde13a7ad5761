"""The tables of the record store, by version. A database is brought up to date when it is opened."""

from __future__ import annotations

import sqlite3

Migrations = tuple[tuple[str, ...], ...]
"""The statements that lead from one version to the next, version by version."""

MIGRATIONS: Migrations = (
    (
        """
        CREATE TABLE records (
            id INTEGER PRIMARY KEY,
            fingerprint TEXT NOT NULL,
            kind TEXT NOT NULL,
            data TEXT NOT NULL
        )
        """,
        "CREATE INDEX records_by_fingerprint ON records (fingerprint, id)",
        """
        CREATE TABLE learned (
            topic TEXT NOT NULL,
            name TEXT NOT NULL,
            data TEXT NOT NULL,
            turn INTEGER NOT NULL,
            PRIMARY KEY (topic, name)
        )
        """,
    ),
    ("CREATE TABLE imported (id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, data TEXT NOT NULL)",),
)
"""The statements that lead from version ``i`` to ``i + 1``. Only ever appended to: databases in the field are older.

``records.data``, ``imported.data`` and ``learned.data`` are JSON objects; ``learned.turn`` grows with each write, so
that the least recently written is known. Records of other machines are apart, so that they can neither count for
routing nor push out what was measured here.
"""


class TooNew(Exception):
    """The database was written by a newer Paceline."""


def migrate(connection: sqlite3.Connection, migrations: Migrations | None = None) -> None:
    """Bring an open database to the last version, in one transaction; another process may be doing the same.

    The connection has to be in autocommit mode. Raises ``TooNew``, or ``sqlite3.Error`` with nothing changed.
    """
    if migrations is None:
        migrations = MIGRATIONS
    version = len(migrations)
    if _version(connection) == version:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        found = _version(connection)
        if found > version:
            raise TooNew(f"its schema is version {found}, this Paceline knows {version}")
        for statements in migrations[found:]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
