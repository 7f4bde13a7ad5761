"""What has changed since last time: each record of a benchmark beside the one that its cell had before."""

from __future__ import annotations

from dataclasses import dataclass

from measure.async_store import AsyncStore
from measure.records import Record
from measure.store import RECORDS_IN_ALL


@dataclass(frozen=True, slots=True)
class Change:
    """A new record and the newest older one of the same deployment and cell, ``None`` when there was none.

    The fingerprints may differ: that is the change whose effect one wants to see.
    """

    record: Record
    before: Record | None


async def since_last(store: AsyncStore, bench: str) -> list[Change]:
    """Return one entry for each record of the benchmark ``bench`` (``Record.bench``), in the order in which they were
    made. Failed records are no record of before. Raises ``StoreError``."""
    newest_first = await store.records(limit=RECORDS_IN_ALL)
    changes: list[Change] = []
    for place, record in enumerate(newest_first):
        if record.bench == bench:
            older = (each for each in newest_first[place + 1 :] if _is_before(each, record))
            changes.append(Change(record, next(older, None)))
    return changes[::-1]


def _is_before(older: Record, record: Record) -> bool:
    return (
        older.bench != record.bench
        and not older.failed
        and (older.deployment, older.model, older.cell) == (record.deployment, record.model, record.cell)
    )
