"""``python -m benchmarks.experiments``: false verdicts and false stops, and how soon true ones come. One table."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from random import Random

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.experiments.laws import Law
from benchmarks.experiments.trial import End, Trial, run
from policies.experiment import RAMP

NULL = 2_000
MOST_FALSE = 0.05
PARTS = (2, 4, 4)
"""Half of the experiments are of the first kind, a quarter of each of the others."""
POWERED = 50
USUAL = Law()
USERS = Law(users=200, users_sigma=0.8)


def nulls() -> list[Trial]:
    """Arms that are alike: whatever is said of them is wrong."""
    return [
        Trial("alike", USUAL, USUAL, 1_500),
        Trial("alike, ramp 5, 25, 50 %", USUAL, USUAL, 1_500, RAMP),
        Trial("alike, 200 users kept to an arm", USERS, USERS, 1_500),
    ]


def effects() -> list[Trial]:
    """Arms that differ."""
    slow = [Law(ttft_s=USUAL.ttft_s * factor, total_s=USUAL.total_s * factor) for factor in (1.1, 1.2, 1.5, 2.0, 3.0)]
    bad = [Law(errors=share) for share in (0.1, 0.2, 0.5)]
    return [
        *(Trial(f"{law.ttft_s / USUAL.ttft_s:.1f} times slower", USUAL, law, 6_000) for law in slow),
        *(Trial(f"{law.errors:.0%} errors instead of {USUAL.errors:.0%}", USUAL, law, 6_000) for law in bad),
    ]


def main() -> int:
    """Run with the command line's arguments. Returns the exit status: 1 when too much is said that is wrong."""
    args = _arguments()
    null, powered = nulls(), effects()
    ends: dict[str, list[End]] = {}
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("experiments", total=args.experiments + len(powered) * args.powered)
        for number, trial in enumerate((*null, *powered)):
            times = args.experiments // PARTS[number] if number < len(null) else args.powered
            ends[trial.name] = []
            for each in range(times):
                ends[trial.name].append(run(trial, Random(f"{args.seed} {number} {each}")))
                progress.advance(bar)
    if args.json:
        print(json.dumps({name: [(end.verdict_at, end.stopped_at) for end in each] for name, each in ends.items()}))
    else:
        _print(null, powered, ends)
    return 0 if false_share([end for trial in null for end in ends[trial.name]]) <= MOST_FALSE else 1


def false_share(ends: Sequence[End]) -> float:
    """Return the share of experiments in which anything was said."""
    return sum(1 for end in ends if end.verdict_at or end.stopped_at) / len(ends)


def _print(null: Sequence[Trial], powered: Sequence[Trial], ends: dict[str, list[End]]) -> None:
    table = Table("alike arms", "experiments", "requests each", "verdicts", "stops", "either (at most 5 %)")
    for trial in null:
        each = ends[trial.name]
        said = [
            sum(1 for end in each if end.verdict_at) / len(each),
            sum(1 for end in each if end.stopped_at) / len(each),
        ]
        row = [f"{share:.2%}" for share in (*said, false_share(each))]
        table.add_row(trial.name, str(len(each)), str(trial.requests), *row)
    console = Console()
    console.print(table)
    table = Table("arms that differ", "verdict", "after, median", "95 of 100", "stopped", "after, median", "95 of 100")
    for trial in powered:
        each = ends[trial.name]
        table.add_row(
            f"{trial.name}",
            *_when([end.verdict_at for end in each], trial.requests),
            *_when([end.stopped_at for end in each], trial.requests),
        )
    console.print(table)
    console.print("Requests of both arms together, half each; of at most 6,000.")


def _when(at: Sequence[int], most: int) -> tuple[str, str, str]:
    """How often it was said, and after how many requests in the median and in 95 of 100 experiments."""
    reached = sorted(each or most + 1 for each in at)
    late = reached[min(len(reached) - 1, int(0.95 * len(reached)))]
    middle = statistics.median(reached)
    said = sum(1 for each in at if each) / len(at)
    return f"{said:.0%}", f"{middle:.0f}" if middle <= most else "-", f"{late}" if late <= most else "-"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments", description=__doc__)
    parser.add_argument("--experiments", type=int, default=NULL, help="of arms that are alike, in all")
    parser.add_argument("--powered", type=int, default=POWERED, help="of arms that differ, each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
