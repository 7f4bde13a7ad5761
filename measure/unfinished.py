"""An interrupted benchmark goes on from where it was."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from measure.async_store import AsyncStore

FRESH = timedelta(hours=24)
"""An interrupted benchmark that is older is begun anew: the machine may not be what it was."""


@dataclass(frozen=True, slots=True)
class BenchMark:
    """The name of one benchmark, on all of its records, and whether it was begun earlier."""

    name: str
    resumed: bool = False


async def take_up(store: AsyncStore, *, again: bool = False) -> BenchMark:
    """Return the benchmark to go on with, or a new one; with ``again`` always a new one. Raises ``StoreError``."""
    now = datetime.now(UTC)
    mark = new_mark()
    state = {} if again else await store.unfinished_bench()
    if (name := state.get("name")) and _is_fresh(str(state.get("begun")), now):
        return BenchMark(str(name), resumed=True)
    await store.save_unfinished_bench({"name": mark.name, "begun": now.isoformat()})
    return mark


def new_mark() -> BenchMark:
    """Return a benchmark that nobody can go on with: for a short one."""
    return BenchMark(f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}")


async def finish(store: AsyncStore) -> None:
    """The benchmark is done: the next one is a new one. Raises ``StoreError``."""
    await store.save_unfinished_bench({})


def _is_fresh(begun: str, now: datetime) -> bool:
    try:
        return now - datetime.fromisoformat(begun) < FRESH
    except (ValueError, TypeError):
        return False
