"""Times one cell of a benchmark: a warm-up, then rounds of equal requests that are sent at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from adapters.base import Adapter, EngineTotals
from adapters.errors import EngineError, TimedOut
from measure.grid import LEAST_RUNS, RUNS
from measure.host_watch import HostWatch
from measure.outside import OutsideTraffic
from measure.probe import Probe
from measure.records import Cell, Kind, Record, Run
from measure.summary import summarise
from measure.traffic import Disturbed

_INTERRUPTIONS = 20
"""So often one round gives way to live traffic before it is given up."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How a benchmark treats live traffic, and how long it is patient.

    ``cell_limit_s`` is for the requests of one cell, waits for live traffic not counted; ``idle_limit_s`` is how long
    it waits for quiet. Without ``waits`` it measures beside live traffic, and marks what it measured so.
    """

    runs: int = RUNS
    cell_limit_s: float = 600.0
    idle_limit_s: float = 600.0
    waits: bool = True


@dataclass(slots=True)
class _Rounds:
    """What has been measured so far, and the seconds that it took."""

    spent_s: float = 0.0
    runs: list[Run] = field(default_factory=list)
    done: int = 0


async def measure_cell(
    probe: Probe,
    cell: Cell,
    rules: Rules,
    traffic: OutsideTraffic,
    watch: HostWatch,
    *,
    settings: Mapping[str, str],
    bench: str,
) -> Record:
    """Time ``rules.runs`` rounds of ``cell.concurrency`` requests, and return the record; a failure is one as well.

    Raises ``Disturbed`` when there was no quiet. Cancelling this ends the requests in flight.
    """
    asked = probe.asked(
        cell.prompt_tokens, cell.output_tokens, concurrency=cell.concurrency, prefix_tokens=cell.prefix_tokens
    )
    asked, rounds, failed = replace(asked, runs=rules.runs), _Rounds(), ""
    async with watch:
        try:
            await _round(probe, cell, rules, rounds, traffic)
            while rounds.done < rules.runs:
                runs = await _round(probe, cell, rules, rounds, traffic)
                rounds.runs += [replace(run, round=rounds.done) for run in runs]
                rounds.done += 1
        except EngineError as error:
            failed = _cause(error, rounds, rules)
    return summarise(
        Kind.GRID,
        probe.deployment,
        asked,
        [] if failed else _from_the_first(rounds.runs),
        failed=failed,
        peak_memory_bytes=watch.peak_memory_bytes,
        peak_gpu_memory_bytes=watch.peak_gpu_memory_bytes,
        machine=watch.machine,
        settings=settings,
        bench=bench,
    )


async def _round(probe: Probe, cell: Cell, rules: Rules, rounds: _Rounds, traffic: OutsideTraffic) -> list[Run]:
    """Send one round, in a quiet moment; the seconds that it took are added to ``rounds``."""
    left_s = rules.cell_limit_s - rounds.spent_s

    async def once() -> list[Run]:
        clock = asyncio.get_running_loop().time
        begun = clock()
        try:
            runs = await _together(probe, cell, left_s)
        except EngineError:
            rounds.spent_s += clock() - begun
            raise
        rounds.spent_s += clock() - begun  # not of a round that gave way
        return runs

    if not rules.waits:
        before = await traffic.look()
        runs = await once()
        disturbed = before or await traffic.look()
        return [replace(run, disturbed=disturbed) for run in runs]
    for _ in range(_INTERRUPTIONS):
        if not await traffic.idle(rules.idle_limit_s):
            break
        with suppress(Disturbed):
            return await traffic.give_way(once())
    raise Disturbed


async def _together(probe: Probe, cell: Cell, limit_s: float) -> list[Run]:
    """Send ``cell.concurrency`` requests at once. Raises the first ``EngineError``, with the others ended."""
    if limit_s <= 0:
        raise TimedOut("no time is left", engine=probe.deployment.endpoint)
    before = await _totals(probe.adapter)
    begun_s = asyncio.get_running_loop().time()
    requests = [
        asyncio.create_task(
            probe.run(cell.prompt_tokens, cell.output_tokens, prefix_tokens=cell.prefix_tokens, limit_s=limit_s)
        )
        for _ in range(cell.concurrency)
    ]
    try:
        runs = await asyncio.gather(*requests)
    finally:
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
    for run in runs:
        probe.calibrate(run)
    runs = _with_totals(runs, before, await _totals(probe.adapter))
    return [replace(run, begun_s=begun_s) for run in runs]


def _from_the_first(runs: list[Run]) -> list[Run]:
    """Count the seconds from the first request on, instead of by the loop's clock."""
    return [replace(run, begun_s=run.begun_s - runs[0].begun_s) for run in runs]


async def _totals(adapter: Adapter) -> EngineTotals | None:
    with suppress(EngineError):
        return await adapter.totals()
    return None


def _with_totals(runs: list[Run], before: EngineTotals | None, after: EngineTotals | None) -> list[Run]:
    """Give requests whose engine keeps sums the means of their round, when it counted these requests and no others."""
    if before is None or after is None or round(after.requests - before.requests) != len(runs):
        return runs
    return [
        replace(
            run,
            engine_queue_s=(after.queue_s - before.queue_s) / len(runs),
            engine_prefill_s=(after.prefill_s - before.prefill_s) / len(runs),
            engine_decode_s=(after.decode_s - before.decode_s) / len(runs),
        )
        for run in runs
    ]


def _cause(error: EngineError, rounds: _Rounds, rules: Rules) -> str:
    """Why a cell failed; "" when its time ran out after enough rounds."""
    out_of_time = isinstance(error, TimedOut) and rounds.spent_s >= rules.cell_limit_s
    if out_of_time and rounds.done >= LEAST_RUNS:
        return ""
    cause = f"{type(error).__name__}: {error.message}"
    if out_of_time:
        cause = f"TimedOut: the cell's {rules.cell_limit_s:g} s are over"
    return f"{cause} (after {rounds.done} of {rules.runs} runs)" if rounds.done else cause
