"""`paceline soak`"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.interrupts import run_to_the_end
from gateway.cli.options import Config, Json, Url, settings_from, told_plainly
from gateway.cli.output import print_json, styled, table, write

if TYPE_CHECKING:
    from gateway.reach import FleetEntry
    from gateway.settings import Settings
    from measure.async_store import AsyncStore
    from measure.soak import Soak

SHOWN_FAILURES = 10


def soak(
    deployments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DEPLOYMENT]...", help="Ids, models or MODEL@SELECTOR. Left out: all but hosted APIs."),
    ] = None,
    requests: Annotated[int, typer.Option("--requests", "-n", min=1, help="Requests to each deployment.")] = 50,
    config: Config = None,
    url: Url = "",
    as_json: Json = False,
) -> None:
    """Make many requests in a row, of mixed lengths, streamed and not, some cancelled and some invalid, and judge.

    A deployment is stable when none failed, the time to the first token and the memory did not grow, and one greedy
    prompt had the same answer. Stable ones are preferred where two are as fast; a running Paceline takes the verdict
    up by itself. Ctrl+C ends it early, with the verdict on what was done.

    Where what was measured allows both, the verdict is "not shown", with how many requests (-n) would tell; an earlier
    verdict then stays.

    Exit status: 0 all are stable, 1 one is not or not shown to be, 2 typed wrongly.
    """
    from gateway.cli.running import beside
    from gateway.reach import NoneSelected

    settings = settings_from(config)
    running = beside(url, settings).deployments
    soaks: list[Soak] = []
    with told_plainly():
        try:
            whole = run_to_the_end(_soak(settings, deployments or [], running, requests, soaks))
        except NoneSelected as error:
            raise typer.BadParameter(str(error), param_hint="DEPLOYMENT") from None
        if not whole:
            write(styled("Ended early: this is the verdict on what was done.", "dim", sys.stderr), sys.stderr)
    results = {each.deployment.id: each.verdict.to_dict() for each in soaks}
    if as_json:
        print_json({"deployments": results})
    else:
        write("\n\n".join(_told(name, result) for name, result in results.items()))
    if not results or not all(result["stable"] for result in results.values()):
        raise typer.Exit(1)


async def _soak(
    settings: Settings,
    words: Sequence[str],
    running: Sequence[FleetEntry] | None,
    requests: int,
    soaks: list[Soak],
) -> None:
    """Fill ``soaks``, one deployment after the other; each verdict is kept as soon as it is there."""
    from gateway.cli.progress import progress_bar
    from gateway.reach import reach
    from measure.async_store import AsyncStore
    from measure.place import records_in
    from measure.soak import Soak

    store = await AsyncStore.open(records_in(settings.data_dir))
    try:
        with progress_bar() as tell:
            async with reach(settings, words, running, lambda note: tell("engines", 0, 1, note)) as reached:
                for each in reached:
                    soaks.append(Soak(each.adapter, each.deployment, requests=requests, pid=each.pid))
                    try:
                        await soaks[-1].run(tell)
                    finally:
                        await _keep(store, soaks[-1])
    finally:
        await store.aclose()


async def _keep(store: AsyncStore, soak: Soak) -> None:
    """Keep a verdict that says something: one on too few requests would hide an earlier one."""
    from gateway.cli.verdict import keep_verdict
    from measure.verdicts import Judged

    if soak.verdict.conclusive:
        await keep_verdict(store, Judged.STABILITY, soak.deployment, soak.verdict.to_dict())


def _told(name: str, result: Mapping[str, Any]) -> str:
    lines = [f"{styled(name, 'bold')}: {_word(result)}", *(f"  because {reason}" for reason in result["reasons"])]
    lines.append(f"  {result['requests']} of {result['planned']} requests, {len(result['failures'])} failed")
    if result["ttft"]:
        lines.append(f"  time to the first token {_change(result['ttft'])} from the first request to the last")
    if result["memory"]:
        size = f"{result['memory_bytes'] / 2**20:.0f} MiB"
        lines.append(f"  memory of its process {_change(result['memory'])} over the last third, to {size}")
    lines.append(f"  same answer to one greedy prompt {result['same']} of {result['repeated']} times")
    lines.append(f"  {result['cancelled']} cancelled, {result['invalid']} invalid of which it took {result['took']}")
    if failures := result["failures"]:
        rows = [(each["number"], each["role"], each["kind"], each["detail"]) for each in failures[:SHOWN_FAILURES]]
        lines.append(table(("REQUEST", "ROLE", "FAILURE", "THE ENGINE SAID"), rows, indent="  "))
        if more := len(failures) - SHOWN_FAILURES:
            lines.append(f"  and {more} more (--json has all)" if more > 0 else "")
    return "\n".join(line for line in lines if line)


def _word(result: Mapping[str, Any]) -> str:
    if result["stable"]:
        return styled("stable", "green")
    return styled("not stable", "red") if result["conclusive"] else styled("not shown to be stable", "yellow")


def _change(change: Mapping[str, float]) -> str:
    return f"{change['change']:+.0%} ({change['low']:+.0%} to {change['high']:+.0%})"
