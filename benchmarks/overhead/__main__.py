"""``python -m benchmarks.overhead``: the load at the raw upstream and at each gateway, side by side, one table."""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.overhead.figures import FIGURES, SCENES, Loads, Row, figures, run_load
from benchmarks.overhead.processes import Running, StartError, gateway, upstreams
from benchmarks.overhead.targets import PACELINE, TARGETS, VLLM_ROUTER
from scripts.lib.ending import end_when_terminated

DIRECT = "direct"


def main() -> int:
    """Run with the command line's arguments. Returns the exit status: 1 when a request failed."""
    end_when_terminated()
    args = _arguments()
    console = Console(stderr=True)
    seconds, warmup_s, rounds = (1.0, 0.3, 1) if args.quick else (args.seconds, 1.0, args.rounds)
    names = args.only.split(",") if args.only else [target.name for target in TARGETS]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-overhead-")))
        ports = stack.enter_context(upstreams(args.deployments))
        running = [Running(DIRECT, ports[0])]
        for target in (target for target in TARGETS if target.name in names):
            program = target.find()
            if program is None:
                console.print(f"{target.name}: not installed, left out")
                continue
            console.print(f"{target.name}: starting …")
            try:
                running.append(stack.enter_context(gateway(target, program, ports, folder / target.name)))
            except StartError as error:
                console.print(f"{error}; left out", markup=False)
        rows = _measure(running, rounds, warmup_s, seconds, console)
    report = _report(rows, args)
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        _print_table(rows, args.deployments)
    for row in rows:
        for text in row.errors:
            console.print(f"{row.name}: {text}", style="red", markup=False)
    return 1 if any(row.errors for row in rows) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of a second each: some seconds per gateway")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of the table")
    parser.add_argument("--only", metavar="NAMES", help="gateways to measure, with commas; left out: all installed")
    parser.add_argument("--rounds", type=int, default=3, help="the median counts (default 3)")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each load (default 3)")
    parser.add_argument("--deployments", type=int, default=8, help="that Paceline chooses from (default 8)")
    return parser.parse_args()


def _measure(running: list[Running], rounds: int, warmup_s: float, seconds: float, console: Console) -> list[Row]:
    """All gateways take turns within each load, so that a machine that slows down slows all of them."""
    rows = [Row(each.name) for each in running]
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=rounds * len(SCENES) * len(running))
        for _ in range(rounds):
            seen: list[Loads] = [{} for _ in running]
            for scene in SCENES:
                for each, loads, row in zip(running, seen, rows, strict=True):
                    progress.update(
                        task, description=f"{each.name}, {scene.clients} {'streams' if scene.stream else 'clients'}"
                    )
                    loads[scene] = load = run_load(each, scene, warmup_s, seconds)
                    if load.errors:
                        row.errors.append(f"{load.errors} errors at {scene}: {load.first_error}")
                    progress.advance(task)
            for loads, row in zip(seen, rows, strict=True):
                row.rounds.append(figures(loads, seen[0]))
    for each, row in zip(running, rows, strict=True):
        if each.pid:
            row.fixed = {"rss_mb": each.rss_mb(), "start_s": each.start_s}
    return rows


def _ratios(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Every gateway's figures as multiples of vllm-router's."""
    reference = next((row for row in rows if row.name == VLLM_ROUTER.name), None)
    if reference is None:
        return {}
    return {row.name: row.ratios(reference) for row in rows if row.name not in (DIRECT, reference.name)}


def _report(rows: list[Row], args: argparse.Namespace) -> dict[str, object]:
    return {
        "machine": {"system": platform.platform(), "python": platform.python_version()},
        "deployments": args.deployments,
        "figures": {row.name: row.values() for row in rows},
        "rounds": {row.name: row.rounds for row in rows},
        "ratios_to_vllm_router": _ratios(rows),
        "errors": {row.name: row.errors for row in rows if row.errors},
    }


def _print_table(rows: list[Row], deployments: int) -> None:
    table = Table(title="In front of an upstream that answers at once")
    table.add_column("gateway", no_wrap=True)
    for figure in FIGURES:
        table.add_column(figure.title, justify="right", no_wrap=True)
    for row in rows:
        values = row.values()
        name = f"{row.name} ({deployments} deployments)" if row.name == PACELINE.name else row.name
        shown = {key for key in values if row.name != DIRECT or key.startswith(("requests", "chunks"))}
        table.add_row(name, *(f"{values[f.key]:,.{f.digits}f}" if f.key in shown else "" for f in FIGURES))
    table.add_section()
    for name, ratios in _ratios(rows).items():
        table.add_row(
            f"{name} ÷ {VLLM_ROUTER.name}", *(f"{ratios[f.key]:.2f}×" if f.key in ratios else "" for f in FIGURES)
        )
    Console(width=max(Console().width, 180)).print(table)


if __name__ == "__main__":
    sys.exit(main())
