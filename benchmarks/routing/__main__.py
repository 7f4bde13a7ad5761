"""``python -m benchmarks.routing``: eight policies, seven workloads, one table.

Every policy gets the very same requests, speeds and outages; each seed draws others. The oracle knows the engines' laws
and all that runs (``oracle.py`` says what it does not know), so the regret is what not knowing them costs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.routing.scenes import NAMES
from benchmarks.routing.table import ORACLE, OURS, POLICIES, Line, lines, outcomes

REGRET, MIXED_GAIN = 0.05, 0.2
_WIDTH = 132
_FIRST_SEED = 101
"""Others than those that the policy was looked at with while it was made."""


def main() -> int:
    """Run with the command line's arguments. Returns the exit status: 1 when a target was missed."""
    args = _arguments()
    n, seeds = (200, 2) if args.quick else (args.requests, args.seeds)
    scenes = args.only.split(",") if args.only else NAMES
    seen = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("simulating", total=len(scenes) * seeds * len(POLICIES))
        for outcome in outcomes(scenes, range(_FIRST_SEED, _FIRST_SEED + seeds), n, processes=args.processes):
            seen.append(outcome)
            progress.advance(task)
    summed = lines(seen)
    missed = _missed(summed)
    if args.json:
        print(json.dumps({"lines": [asdict(line) for line in summed], "missed": missed}, indent=2))
    else:
        _print(summed, n, seeds)
        for text in missed:
            print(f"missed: {text}")
    return 1 if missed and not args.quick else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.routing", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="200 requests and two seeds: some seconds, much noise")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of the table")
    parser.add_argument("--only", metavar="NAMES", help=f"workloads, with commas; left out: {', '.join(NAMES)}")
    parser.add_argument("--requests", type=int, default=800, metavar="N", help="per workload and seed (800)")
    parser.add_argument("--seeds", type=int, default=8, metavar="N", help="repetitions with other draws (8)")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="run on so many cores (1)")
    return parser.parse_args()


def _missed(summed: Sequence[Line]) -> list[str]:
    """Say which targets do not hold."""
    missed = []
    for line in summed:
        if line.policy == OURS and line.regret > REGRET:
            missed.append(f"{line.scene}: {line.regret:.1%} above the oracle, not {REGRET:.0%}")
        if line.policy in (OURS, ORACLE):
            continue
        if line.against_ours + line.noise < 0.0:
            missed.append(f"{line.scene}: {line.policy} is {-line.against_ours:.1%} better, noise {line.noise:.1%}")
        gain = line.against_ours / (1.0 + line.against_ours)
        if line.scene.startswith("mixed") and gain < MIXED_GAIN:
            missed.append(f"{line.scene}: only {gain:.0%} better than {line.policy}, not {MIXED_GAIN:.0%}")
    return missed


def _print(summed: Sequence[Line], n: int, seeds: int) -> None:
    table = Table(title=f"Seconds over {seeds} × about {n} requests; TTFT and total: mean, p50, p95")
    table.add_column("workload")
    table.add_column("policy")
    for column in ("TTFT", "p50", "p95", "total", "p50", "p95", "regret", "against Paceline"):
        table.add_column(column, justify="right")
    for line in summed:
        style = "bold" if line.policy == OURS else ""
        first = line.policy == next(iter(POLICIES))
        against = "" if line.policy == OURS else f"{line.against_ours:+.0%} ± {line.noise:.0%}"
        table.add_row(
            line.scene if first else "",
            line.policy,
            *(f"{value:.2f}" for value in (*line.ttft_s, *line.total_s)),
            "" if line.policy == ORACLE else f"{line.regret:+.1%}",
            against,
            style=style,
            end_section=line.policy == ORACLE,
        )
    console = Console()
    console.width = max(console.width, _WIDTH)
    console.print(table)


if __name__ == "__main__":
    raise SystemExit(main())
