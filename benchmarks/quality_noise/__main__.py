"""``python -m benchmarks.quality_noise``: does the quality regression notice harm, and nothing else? One table."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from adapters.base import Endpoint
from adapters.hardware import hardware_of
from adapters.launch import LaunchError, LaunchSpec
from adapters.managed import ManagedEngine
from adapters.registry import create
from benchmarks.quality_noise.cases import BASELINE, FORMATS, LEVELS, Case
from gateway.deployments import EngineWord, build_deployments
from measure.progress import Progress as Tell
from measure.quality.examine import Examinee
from measure.quality.prompts import Prompt
from measure.quality.regression import compare, refer
from measure.quality.suite import SUITE, VERSION, spread
from measure.quality.verdict import QualityVerdict
from policies.types import Quality
from scripts.lib.ending import end_when_terminated
from scripts.lib.local_engines import NotMade

CONTEXT = 4096

_MARKDOWN_COLUMNS = 1000

Row = tuple[Case, QualityVerdict]

console = Console(stderr=True)


def main() -> int:
    """Run with the command line's arguments. Returns the exit status: 1 when a verdict is not what it should be."""
    end_when_terminated()
    args = _arguments()
    cases = [Case(name) for name in args.formats.split(",") if name]
    cases += [Case(BASELINE, level) for level in sorted(map(float, filter(None, args.levels.split(","))))]
    prompts = SUITE if args.limit is None else spread(SUITE, args.limit)
    rows: list[Row] = []
    try:
        with tempfile.TemporaryDirectory(prefix="paceline-quality-") as folder:
            asyncio.run(_run(cases, prompts, Path(folder), rows))
    except (NotMade, LaunchError) as error:
        console.print(f"error: {error}", style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("Stopped: this is what was done until then.")
    if args.json:
        print(json.dumps([{"case": case.name, "noise": case.noise, **verdict.to_dict()} for case, verdict in rows]))
    else:
        print_table(rows, markdown=args.markdown)
    return 0 if is_right(rows) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality_noise", description=__doc__)
    parser.add_argument("--formats", default=",".join(FORMATS), metavar="NAMES", help="default: %(default)s")
    levels = ",".join(map(str, LEVELS))
    parser.add_argument("--levels", default=levels, metavar="SHARES", help="of noise (default: %(default)s)")
    parser.add_argument("--limit", type=int, metavar="N", help="only N prompts; all: two minutes for each case")
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead of the table")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown, for a document")
    return parser.parse_args()


async def _run(cases: Sequence[Case], prompts: Sequence[Prompt], folder: Path, rows: list[Row]) -> None:
    """Fill ``rows``; what is done stays there when it is interrupted."""
    with Progress(console=console, transient=True) as progress:
        tasks = {case: progress.add_task(case.name, total=len(prompts)) for case in (Case(BASELINE), *cases)}

        def tell(case: Case) -> Tell:
            return lambda _, done, total, note: progress.update(tasks[case], completed=done, total=total)

        async with _serving(Case(BASELINE), folder) as baseline:
            reference = await refer(baseline, prompts, VERSION, progress=tell(Case(BASELINE)))
        for case in cases:
            async with _serving(case, folder) as candidate:
                rows.append((case, (await compare(reference, candidate, progress=tell(case))).verdict))


@asynccontextmanager
async def _serving(case: Case, folder: Path) -> AsyncIterator[Examinee]:
    """A llama.cpp that serves the case, as what the regression asks."""
    with case.file(folder) as path:
        spec = LaunchSpec(name="llamacpp", engine="llamacpp", model=str(path), context=CONTEXT, slots=1)
        managed = ManagedEngine(spec)
        managed.start()
        try:
            await managed.wait_up()
            adapter = create("llamacpp", Endpoint(name=spec.name, url=managed.url))
            try:
                description = managed.complete(await adapter.describe())
                (deployment,) = build_deployments(EngineWord(case.name), description, hardware_of(managed.url))
                yield Examinee(deployment, lambda: adapter)
            finally:
                await adapter.aclose()
        finally:
            await managed.stop()


def is_right(rows: Sequence[Row]) -> bool:
    """Formats pass, and once noise has failed, more noise fails as well; the most noise does."""
    formats = [verdict.quality is Quality.PASSED for case, verdict in rows if not case.noise]
    noises = [verdict.quality is Quality.PASSED for case, verdict in rows if case.noise]
    return all(formats) and noises == sorted(noises, reverse=True) and (not noises or not noises[-1])


def print_table(rows: Sequence[Row], *, markdown: bool) -> None:
    """Print a row for each case; as Markdown each is one line."""
    title = f"Against {BASELINE.upper()}, suite {VERSION}"
    table = Table(box=box.MARKDOWN) if markdown else Table(title=title)
    table.add_column("candidate", no_wrap=True)
    names = list(dict.fromkeys(measure.name for _, verdict in rows for measure in verdict.measures))
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("good answers", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for case, verdict in rows:
        found = {measure.name: measure for measure in verdict.measures}
        cells = [
            f"{each.tell(each.value)} ({each.tell(each.low)} to {each.tell(each.high)})" if each else ""
            for each in (found.get(name) for name in names)
        ]
        good = [sum(score.baseline for score in verdict.scores), sum(score.candidate for score in verdict.scores)]
        table.add_row(case.name, *cells, f"{good[0]} → {good[1]} of {verdict.prompts}", verdict.quality)
    if markdown:
        print(f"{title}:")
    # A row of a Markdown table has to stay one line.
    Console(width=_MARKDOWN_COLUMNS if markdown else max(Console().width, 190)).print(table)


if __name__ == "__main__":
    sys.exit(main())
