"""``python -m benchmarks.routing_real``: real engines behind a gateway; are its choices and predictions good?"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psutil
import yaml
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.routing_real.client import Client
from benchmarks.routing_real.figures import (
    Errors,
    groups,
    regret,
    repeated,
    report,
    right,
    right_of_one_round,
    total_errors,
    ttft_errors,
)
from benchmarks.routing_real.others import DISTURBED, Others
from benchmarks.routing_real.phases import AT_ONCE, Phase, at_once, beside_others, choices, one_by_one
from benchmarks.routing_real.shapes import shapes
from scripts.lib.ending import end_when_terminated
from scripts.lib.gateway_process import Gateway, GatewayFailed
from scripts.lib.local_engines import MODEL, NotMade, engines

EVERY_PRECISION = f"{MODEL}@int4+"
"""None of these deployments has a verdict on its quality, so that the bare name would admit 16 bits alone."""
BESIDE = ("builtin", "vllm")
"""What runs beside llama.cpp where it has been made: engines whose choice is worth a proof."""

console = Console(stderr=True)


def main() -> int:
    """Run with the command line's arguments. Returns the exit status: 1 when something failed."""
    end_when_terminated()
    args = _arguments()
    with tempfile.TemporaryDirectory(prefix="paceline-routing-") as folder:
        phases: list[Phase] = []
        try:
            _run(args, Path(folder), phases)
        except (NotMade, GatewayFailed) as error:
            console.print(f"error: {error}", style="red", markup=False)
            return 1
        except KeyboardInterrupt:
            console.print("Stopped: this is what was done until then.")
    if args.json:
        print(json.dumps(report(phases), indent=2))
    else:
        _print(phases)
    failed = [line for phase in phases for line in phase.errors]
    for line in failed:
        console.print(line, style="red", markup=False)
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing_real", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few requests, llama.cpp alone: about two minutes")
    parser.add_argument("--requests", type=int, default=120, help="half of them alone, half at once (default 120)")
    parser.add_argument("--every", type=int, default=3, help="one in so many is asked of every candidate (default 3)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each candidate is asked then (default 3)")
    parser.add_argument("--scenes", type=int, default=8, help="choices that are compared beside others (default 8)")
    parser.add_argument(
        "--without", nargs="*", choices=BESIDE, default=(), help="engines to leave out, where they have been made"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead of the tables")
    args = parser.parse_args()
    if args.quick:
        args.requests, args.every, args.rounds, args.scenes, args.without = 20, 5, 1, 1, BESIDE
    return args


def _run(args: argparse.Namespace, folder: Path, phases: list[Phase]) -> None:
    """Fill ``phases``; what is done stays there when it is interrupted."""
    config = folder / "paceline.yaml"
    configured = engines([name for name in BESIDE if name not in args.without], folder, console.print)
    config.write_text(
        yaml.safe_dump(
            {"server": {"port": 0}, "data_dir": str(folder / "data"), "cache": {"mode": "off"}, "engines": configured},
            sort_keys=False,
        )
    )
    console.print(f"Starting {len(configured)} engines and the gateway.")
    with Gateway(config, folder / "gateway.log") as gateway:
        gateway.wait_until_measured(console, {engine["name"] for engine in configured})
        candidates = [entry["id"] for entry in gateway.deployments()]
        others = Others([psutil.Process(gateway.pid), *gateway.processes()])
        asyncio.run(_measure(args, Client(gateway.url, EVERY_PRECISION, others), candidates, phases))
        left = gateway.stop()
    if left:
        raise GatewayFailed(f"these processes are left: {left}")


async def _measure(args: argparse.Namespace, client: Client, candidates: Sequence[str], phases: list[Phase]) -> None:
    alone = args.requests // 2
    asked = shapes(alone, follow_ups=True)
    again = sum(not (shape.follow_up or shape.number % args.every) for shape in asked)
    total = args.requests + again * (args.rounds * len(candidates) - 1) + args.scenes * len(candidates)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("sending", total=total)

            def tell(what: str) -> None:
                progress.update(task, description=what, advance=1)

            def begin(name: str) -> Phase:
                phases.append(Phase(name))
                return phases[-1]

            await one_by_one(begin("one by one"), client, asked, candidates, args.every, args.rounds, tell)
            await at_once(begin(f"{AT_ONCE} at once"), client, shapes(args.requests - alone, alone), tell)
            await beside_others(begin("beside others"), client, args.scenes, args.requests, candidates, tell)
    finally:
        await client.aclose()


def _print(phases: Sequence[Phase]) -> None:
    table = Table(title="Choices and predictions on real engines", title_justify="left")
    table.add_column("phase")
    columns = (
        "requests",
        "compared",
        "fastest or\nwithin 10 %",
        "by one\nround",
        "regret",
        "total: median\nerror",
        "within\n15 %",
        "bias",
    )
    for column in (*columns, "TTFT: median\nerror", "within\n15 %", "bias"):
        table.add_column(column, justify="right", no_wrap=True)
    quiet = [phase.undisturbed() for phase in phases]
    for all_, undisturbed in zip(phases, quiet, strict=True):
        _add_row(table, "all", all_)
        _add_row(table, "undisturbed", undisturbed)
        again = repeated(all_)
        if any(again):
            table.add_row(
                f"{all_.name}, the same again", *[""] * 5, *(cell for found in again for cell in _three(found))
            )
    wide = Console(width=max(Console().width, 150))
    wide.print(table)
    wide.print("The same again: who predicts by the same request, asked of the same engine a moment before and after.")
    wide.print("By one round: how often that is so of the fastest in one round of asking each, by what the others say.")
    wide.print(f"Undisturbed: other programs on this machine used no more than {DISTURBED:g} of its cores meanwhile.")
    for phase in quiet:
        _print_groups(phase, wide)
    wide.print("Chosen: " + ", ".join(f"{name} {count}×" for name, count in choices(phases).most_common()))


def _add_row(table: Table, which: str, phase: Phase) -> None:
    chosen = (
        str(len(phase.cases)),
        _percent(right(phase)),
        _percent(right_of_one_round(phase)),
        _percent(regret(phase)),
    )
    table.add_row(f"{phase.name}, {which}", str(len(phase.sent)), *chosen, *_cells(phase))


def _print_groups(phase: Phase, wide: Console) -> None:
    table = Table(title=f"{phase.name}, by group", title_justify="left")
    table.add_column("group")
    for column in (
        "requests",
        "total: median\nerror",
        "within\n15 %",
        "bias",
        "TTFT: median\nerror",
        "within\n15 %",
        "bias",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for name, members in groups(phase.sent):
        table.add_row(name, str(len(members)), *_cells(Phase(name, members)))
    wide.print(table)


def _cells(phase: Phase) -> tuple[str, ...]:
    return (*_three(total_errors(phase.sent)), *_three(ttft_errors(phase.sent)))


def _three(found: Errors | None) -> tuple[str, str, str]:
    if found is None:
        return ("", "", "")
    return _percent(found.median), _percent(found.close), f"{found.bias:+.0%}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


if __name__ == "__main__":
    sys.exit(main())
