"""`paceline bench`"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.interrupts import INTERRUPTED, run_to_the_end
from gateway.cli.options import Config, Json, Url, settings_from, told_plainly
from gateway.cli.output import UserError, print_json, styled, write

if TYPE_CHECKING:
    from gateway.cli.running import Beside
    from gateway.settings import Settings
    from measure.cell import Rules
    from measure.grid import Grid
    from measure.records import Record


def bench(
    deployments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DEPLOYMENT]...", help="Ids, models or MODEL@SELECTOR. Left out: all but hosted APIs."),
    ] = None,
    prompt_tokens: Annotated[
        str, typer.Option(metavar="N,N,…", help="Prompt lengths. Left out: 64, 256, 1024, … up to the context.")
    ] = "",
    output_tokens: Annotated[str, typer.Option(metavar="N,N,…", help="Generation limits.")] = "32,128",
    concurrency: Annotated[
        int, typer.Option(min=1, max=1024, help="Most requests at once; raised 1, 2, 4, … while TTFT stays below 3 ×.")
    ] = 32,
    runs: Annotated[int, typer.Option(min=3, help="Runs of each cell; a warm-up comes before them.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="As at a start: 3 or 4 prompt lengths in about 10 s.")] = False,
    prefix_cache: Annotated[
        bool, typer.Option("--prefix-cache", help="Prompts that begin alike: what the engine's prefix cache saves.")
    ] = False,
    cell_limit: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Time for one cell.")] = 600.0,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Give way to live traffic.")] = True,
    wait_limit: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Longest wait for it to end.")] = 600.0,
    again: Annotated[bool, typer.Option("--again", help="Begin anew after an interruption.")] = False,
    compare_last: Annotated[
        bool, typer.Option("--compare-last", help="Say what changed since the last record of each cell.")
    ] = False,
    config: Config = None,
    url: Url = "",
    as_json: Json = False,
) -> None:
    """Measure: TTFT and decode speed over prompt length, generation limit and concurrency, and beside neighbours.

    Each record is kept as soon as it is there, and routing uses it. Ctrl+C keeps what is done; the same command goes on
    from there. Live traffic has priority: it is waited for. Engines that are configured to be started are started for
    it, unless a running Paceline has them. docs/measuring.md tells how it measures.

    Exit status: 0 measured, 1 a deployment could not be, 2 typed wrongly, 130 interrupted.
    """
    from gateway.cli.running import beside
    from gateway.reach import NoneSelected
    from measure.cell import Rules
    from measure.database import StoreError
    from measure.grid import Grid
    from measure.traffic import Disturbed

    settings = settings_from(config)
    grid = Grid(
        prompt_tokens=_numbers(prompt_tokens, "--prompt-tokens"),
        output_tokens=_numbers(output_tokens, "--output-tokens"),
        concurrency=concurrency,
        prefix_cache=prefix_cache,
    )
    rules = Rules(runs=runs, cell_limit_s=cell_limit, idle_limit_s=wait_limit, waits=wait)
    wanted = _Wanted(settings, deployments or [], grid, rules, beside(url, settings), quick=quick, again=again)
    with told_plainly():
        try:
            wanted.interrupted = not run_to_the_end(_measure(wanted))
        except NoneSelected as error:
            raise typer.BadParameter(str(error), param_hint="DEPLOYMENT") from None
        except StoreError as error:
            raise UserError(f"records cannot be read or written: {error}") from None
        except Disturbed:
            fix = "What is measured is kept; the same command goes on, --no-wait measures beside live traffic."
            raise UserError(f"live traffic left no room for {wait_limit:g} s", fix=fix) from None
    _report(wanted, compare_last=compare_last, as_json=as_json)
    if wanted.interrupted:
        raise typer.Exit(INTERRUPTED)
    if wanted.given_up or all(record.failed for record in wanted.records):
        raise typer.Exit(1)


@dataclass
class _Wanted:
    """A benchmark as it was typed, and what has come of it so far."""

    settings: Settings
    words: Sequence[str]
    grid: Grid
    rules: Rules
    beside: Beside
    quick: bool
    again: bool
    name: str = ""
    interrupted: bool = False
    records: list[Record] = field(default_factory=list)
    given_up: dict[str, str] = field(default_factory=dict)


async def _measure(wanted: _Wanted) -> None:
    from gateway.benching import subjects
    from gateway.cli.bench_progress import bench_progress
    from gateway.reach import reach
    from measure.async_store import AsyncStore
    from measure.bench import Bench
    from measure.place import records_in
    from measure.unfinished import finish, new_mark, take_up

    store = await AsyncStore.open(records_in(wanted.settings.data_dir))
    try:
        with bench_progress() as shown:
            async with reach(wanted.settings, wanted.words, wanted.beside.deployments, shown.note) as reached:
                mark = new_mark() if wanted.quick else await take_up(store, again=wanted.again)
                wanted.name = mark.name
                if mark.resumed:
                    shown.say(f"going on with benchmark {mark.name}; --again begins anew")
                found = subjects(reached, wanted.settings, wanted.beside.ask, shown.waiting)
                bench = Bench(mark.name, store, wanted.grid, wanted.rules, shown.step)
                wanted.records, wanted.given_up = bench.records, bench.given_up
                if wanted.quick:
                    await bench.measure_quickly(found)
                    return
                await bench.measure_grids(found)
                if not wanted.grid.prefix_cache:
                    await bench.measure_pairs(found)
                await finish(store)
    finally:
        await store.aclose()


def _report(wanted: _Wanted, *, compare_last: bool, as_json: bool) -> None:
    from gateway.cli.bench_table import bench_tables
    from gateway.cli.since_last import change_pages, changes_json, changes_of

    compares = compare_last and bool(wanted.name)
    changes, history = changes_of(wanted.name, wanted.settings.data_dir) if compares else ([], [])
    if as_json:
        answer: dict[str, Any] = {
            "bench": wanted.name,
            "finished": not wanted.interrupted,
            "given_up": wanted.given_up,
            "records": [record.to_dict() for record in wanted.records],
        }
        if compare_last:
            answer["since_last"] = changes_json(changes, history)
        print_json(answer)
    elif wanted.records:
        write(bench_tables(wanted.records))
        if changes:
            write(f"\n{change_pages(changes, history)}")
    for deployment, why in wanted.given_up.items():
        write(f"{styled('warning:', 'yellow', sys.stderr)} {deployment} was left: {why}", sys.stderr)
    if wanted.interrupted:
        kept = f"{len(wanted.records)} records are kept"
        goes_on = "" if wanted.quick else "; the same command goes on from there, --again begins anew"
        write(f"Interrupted: {kept}{goes_on}.", sys.stderr)


def _numbers(text: str, option: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.replace(" ", "").split(",") if part)
    except ValueError:
        numbers = (0,)
    if any(number < 1 for number in numbers):
        raise typer.BadParameter(f"{text!r} is not a list of lengths such as 64,256,1024", param_hint=option)
    return numbers
