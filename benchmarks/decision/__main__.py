"""``python -m benchmarks.decision``: microseconds of a routing decision, and the memory of what was learned."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from rich.console import Console
from rich.table import Table

from benchmarks.decision.fleet import ASK, make_busy, make_fleet, make_used
from benchmarks.decision.memory import Store, stores

COUNTS = (1, 8, 100)
TARGETS_US = {8: 50.0, 100: 300.0}
_BATCH_S = 0.002
"""Batches are short, and the quickest counts: what else the machine does comes and goes."""


def main() -> int:
    """Run with the command line's arguments. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decision", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the time, and no memory")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of tables")
    args = parser.parse_args()
    rounds = 100 if args.quick else 1000
    rows = [asyncio.run(_decisions(count, rounds)) for count in COUNTS]
    weighed = [] if args.quick else stores()
    if args.json:
        print(json.dumps({"decisions_us": rows, "stores": [asdict(store) for store in weighed]}, indent=2))
    else:
        _print_decisions(rows)
        if weighed:
            _print_stores(weighed)
    return 0


async def _decisions(count: int, rounds: int) -> dict[str, float]:
    """Return microseconds per decision with so many deployments, by what runs there, the fleet's view included.

    "In use" is the everyday case: four are busy, and all have usual company.
    """
    row: dict[str, float] = {"deployments": count}
    for name, hosts, busy in (
        ("idle", count, 0),
        ("in use", count, min(4, count)),
        ("all busy", count, count),
        ("all busy, 2 on a host", max(1, count // 2), count),
    ):
        fleet = make_fleet(count, hosts=hosts)
        try:
            if name == "in use":
                make_used(fleet)
            make_busy(fleet, busy)
            row[name] = round(_quickest_us(partial(fleet.route, ASK), rounds), 1)
        finally:
            await fleet.aclose()
    return row


def _quickest_us(decide: Callable[[], object], rounds: int) -> float:
    gc.collect()
    started = time.perf_counter()
    decide()
    times = max(1, int(_BATCH_S / (time.perf_counter() - started)))
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(times):
            decide()
        best = min(best, time.perf_counter() - started)
    return best / times * 1e6


def _print_decisions(rows: list[dict[str, float]]) -> None:
    table = Table(title="One decision, µs (the fleet's view included)")
    for column in rows[0]:
        table.add_column(column, justify="right")
    table.add_column("target", justify="right")
    for row in rows:
        target = TARGETS_US.get(int(row["deployments"]))
        values = [f"{value:g}" for value in row.values()]
        table.add_row(*values, f"≤ {target:g}" if target else "")
    Console().print(table)


def _print_stores(weighed: list[Store]) -> None:
    table = Table("learned", "bound", title="Memory of all that was learned, at its bounds")
    table.add_column("MB", justify="right")
    for store in weighed:
        table.add_row(store.name, store.bound, f"{store.bytes_ / 1e6:.1f}")
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
