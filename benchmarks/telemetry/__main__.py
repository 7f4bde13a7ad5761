"""``python -m benchmarks.telemetry``: what traces and metrics cost a request, beside a gateway that makes none.

All gateways stand in front of the same upstream, which answers at once, and take turns; each difference is one between
neighbours in time, and their median counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.overhead.figures import Scene, run_load
from benchmarks.overhead.load import Load
from benchmarks.overhead.processes import Running, gateway, upstreams
from benchmarks.overhead.targets import Target, paceline_arguments
from benchmarks.overhead.upstream import CHUNKS
from benchmarks.telemetry.collectors import dead, frozen, taking
from scripts.lib.ending import end_when_terminated

OFF: Final = "off"
WHOLE: Final = Scene(1)
STREAM: Final = Scene(1, stream=True)


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table: a share of kept traces, and who gets them."""

    title: str
    share: float | None = None
    collector: str = ""
    metrics: bool = True


CASES: Final = (
    Case(OFF, metrics=False),
    Case("metrics alone"),
    Case("1 % of traces", 0.01, "taking"),
    Case("all traces", 1.0, "taking"),
    Case("1 %, collector dead", 0.01, "dead"),
    Case("1 %, collector frozen", 0.01, "frozen"),
)


def main() -> int:
    """Run with the command line's arguments. Returns the exit status: 1 when a request failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.telemetry", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of the table")
    parser.add_argument("--rounds", type=int, default=9, help="the median difference counts (default 9)")
    parser.add_argument("--seconds", type=float, default=1.5, help="for each load (default 1.5)")
    args = parser.parse_args()
    end_when_terminated()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-telemetry-")))
        ports = stack.enter_context(upstreams(8))
        collectors: dict[str, AbstractContextManager[str]] = {"taking": taking(), "dead": dead(), "frozen": frozen()}
        urls = {name: stack.enter_context(each) for name, each in collectors.items()}
        running = {}
        for number, case in enumerate(CASES):
            target = Target(f"case-{number}", "paceline", _arguments, _environment(case, urls))
            program = target.find()
            assert program is not None, "paceline is not installed here"
            running[case.title] = stack.enter_context(gateway(target, program, ports, folder / target.name))
        seen = _measure(running, args.rounds, args.seconds)
    figures = {title: _figures(seen[title], seen[OFF]) for title in seen}
    if args.json:
        print(json.dumps(figures, indent=2))
    else:
        _print(figures)
    errors = [load.first_error for pairs in seen.values() for pair in pairs for load in pair if load.errors]
    for error in errors:
        Console(stderr=True).print(error, style="red", markup=False)
    return 1 if errors else 0


def _arguments(site: object) -> list[str]:
    return paceline_arguments(site, {"mode": "off"})  # type: ignore[arg-type]


def _environment(case: Case, urls: dict[str, str]) -> dict[str, str]:
    environment = {"PACELINE_TELEMETRY__METRICS": str(case.metrics).lower()}
    if case.share is not None:
        environment["PACELINE_TELEMETRY__SAMPLE"] = str(case.share)
    if case.collector:
        environment["PACELINE_TELEMETRY__ENDPOINT"] = urls[case.collector]
    return environment


Pair = tuple[Load, Load]


def _measure(running: dict[str, Running], rounds: int, seconds: float) -> dict[str, list[Pair]]:
    seen: dict[str, list[Pair]] = {title: [] for title in running}
    for number in range(rounds):
        for title in _turn(list(running), number):
            each = running[title]
            seen[title].append((run_load(each, WHOLE, 0.3, seconds), run_load(each, STREAM, 0.3, seconds)))
    return seen


def _turn(titles: list[str], number: int) -> Iterator[str]:
    """Each round begins with another one: what comes first after a pause is not always the same."""
    first = number % len(titles)
    yield from titles[first:] + titles[:first]


def _figures(pairs: list[Pair], off: list[Pair]) -> dict[str, float]:
    """CPU and time of one request, and the medians of the differences to ``off`` in the same round."""
    rounds = list(zip(pairs, off, strict=True))
    return {
        "cpu_ms": statistics.median(_cpu_ms(whole) for whole, _ in pairs),
        "more_cpu_ms": statistics.median(_cpu_ms(mine[0]) - _cpu_ms(none[0]) for mine, none in rounds),
        "p50_ms": statistics.median(whole.p50_ms for whole, _ in pairs),
        "p99_ms": statistics.median(whole.p99_ms for whole, _ in pairs),
        "stream_cpu_ms": statistics.median(_cpu_ms(stream) for _, stream in pairs),
        "more_us_a_chunk": statistics.median(
            1e3 * ((_cpu_ms(mine[1]) - _cpu_ms(none[1])) - (_cpu_ms(mine[0]) - _cpu_ms(none[0]))) / CHUNKS
            for mine, none in rounds
        ),
    }


def _cpu_ms(load: Load) -> float:
    return 1e3 * load.gateway_cpu_s / max(1, load.requests)


def _print(figures: dict[str, dict[str, float]]) -> None:
    table = Table(title="What telemetry costs a request (one client, an upstream that answers at once)")
    for column in ("", "CPU ms", "more than off", "p50 ms", "p99 ms", "CPU ms, 64 chunks", "more µs a chunk"):
        table.add_column(column, justify="right" if column else "left")
    for title, each in figures.items():
        is_off = title == OFF
        table.add_row(
            title,
            f"{each['cpu_ms']:.3f}",
            "" if is_off else f"{each['more_cpu_ms']:+.3f}",
            f"{each['p50_ms']:.3f}",
            f"{each['p99_ms']:.3f}",
            f"{each['stream_cpu_ms']:.3f}",
            "" if is_off else f"{each['more_us_a_chunk']:+.2f}",
        )
    console = Console(width=max(Console().width, 110))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
