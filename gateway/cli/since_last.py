"""The before-and-after tables of one change: a benchmark beside what its cells were on record before."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gateway.cli.compare_table import comparison_page
from gateway.cli.output import UserError, styled
from measure.async_store import AsyncStore
from measure.compare import Comparison, compare
from measure.compare_variables import NotComparable
from measure.database import StoreError
from measure.last import Change, since_last
from measure.place import records_in
from measure.records import Kind, Record
from measure.store import RECORDS_IN_ALL

SIDES = ("last", "now")

Group = tuple[str, list[Change]]


def changes_of(bench: str, data_dir: Path) -> tuple[list[Change], list[Record]]:
    """Return the records of a benchmark, each with the one before, and all that are there. Raises ``UserError``."""

    async def read() -> tuple[list[Change], list[Record]]:
        store = await AsyncStore.open(records_in(data_dir))
        try:
            return await since_last(store, bench), await store.records(limit=RECORDS_IN_ALL)
        finally:
            await store.aclose()

    try:
        return asyncio.run(read())
    except StoreError as error:
        raise UserError(f"records cannot be read: {error}") from None


def change_pages(changes: Iterable[Change], history: Sequence[Record]) -> str:
    """Return what changed for each deployment, or why that cannot be said."""
    return "\n\n".join(f"{styled(title, 'bold')}\n{_page(group, history)}" for title, group in _groups(changes))


def changes_json(changes: Iterable[Change], history: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the same as plain values."""
    return [{"what": title, **_plain(group, history)} for title, group in _groups(changes)]


def _page(group: list[Change], history: Sequence[Record]) -> str:
    made = _compared(group, history)
    if isinstance(made, Comparison):
        return comparison_page(made)
    why = made.differences or made.fix.splitlines()
    return "\n".join([f"Not compared: {made.message}", *(f"  {str(each).strip()}" for each in why)])


def _plain(group: list[Change], history: Sequence[Record]) -> dict[str, Any]:
    made = _compared(group, history)
    if isinstance(made, Comparison):
        return made.to_dict()
    return {"refused": made.message, "differs": [difference.name for difference in made.differences]}


def _compared(group: list[Change], history: Sequence[Record]) -> Comparison | NotComparable:
    before = [change.before for change in group if change.before is not None]
    if not before:
        return NotComparable(f"measured for the first time ({len(group)} cells)")
    after = [change.record for change in group if change.before is not None]
    try:
        return compare(before, after, history=history, sides=SIDES)
    except NotComparable as refusal:
        return refusal


def _groups(changes: Iterable[Change]) -> list[Group]:
    """The cells of each deployment that were last measured in the same state. A pair is one run: that compares with
    nothing."""
    groups: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        if change.record.kind is not Kind.PAIR:
            state = change.before.fingerprint if change.before else ""
            groups.setdefault((change.record.deployment, state), []).append(change)
    return [(_title(group), group) for group in groups.values()]


def _title(group: list[Change]) -> str:
    dates = sorted({change.before.at[:10] for change in group if change.before})
    since = f", since {' and '.join(dict.fromkeys((dates[0], dates[-1])))}" if dates else ""
    return f"{group[0].record.deployment}{since}"
