"""The quick measurement at start: enough to predict with, in about ten seconds on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from adapters.base import Adapter
from adapters.errors import EngineError
from measure.plan import Plan
from measure.probe import RUN_LIMIT_S, Probe
from measure.progress import Progress, silent
from measure.records import Asked, Kind, Record, Run
from measure.summary import summarise
from measure.traffic import IDLE_LIMIT_S, Disturbed, Traffic
from policies.types import Deployment, SpeedSample

LENGTHS = (32, 128, 512, 1024)
SPARE_LENGTH = 4096
"""Measured in the time that is left when all others are: on a GPU, and on a CPU with many cores."""
OUTPUT_TOKENS = 16
RUNS = 5
"""Of each length, as far as the budget goes: it goes that far where an engine is fast, and its times are short and
uncertain."""
BUDGET_S = 10.0
WARM_UP_LIMIT_S = 300.0
"""The first request may have to wait for the model to be loaded."""

_CONTEXT_SHARE = 0.7
"""Prompts keep this far below the context: their token count is aimed at, and a template adds to it."""


@dataclass(frozen=True, slots=True)
class QuickResult:
    """One record per prompt length, failed ones included, shortest first."""

    records: tuple[Record, ...]

    @property
    def samples(self) -> tuple[SpeedSample, ...]:
        """What the predictor is fitted to."""
        return tuple(sample for record in self.records if (sample := record.speed) is not None)

    @property
    def failed(self) -> str:
        """Why there is nothing to predict with; "" when there is."""
        causes = (record.failed or "no decode speed: the answers had one token" for record in self.records)
        return "" if self.samples else "; ".join(dict.fromkeys(causes))


async def measure_quickly(
    adapter: Adapter,
    deployment: Deployment,
    *,
    traffic: Traffic | None = None,
    progress: Progress = silent,
    budget_s: float = BUDGET_S,
    memory: Callable[[], int | None] = lambda: None,
    seed: int | None = None,
    idle_limit_s: float = IDLE_LIMIT_S,
) -> QuickResult:
    """Time ``deployment`` at a few prompt lengths; engine errors end up in the records, never here.

    After a warm-up that does not count, ``Plan``'s rule decides within ``budget_s`` seconds. Each run waits for
    ``traffic`` to be idle, at most ``idle_limit_s``, and gives way when a live request begins. Where there is no quiet,
    the runs that the rule calls necessary are made beside the traffic, and marked. Nobody else may measure on the same
    hardware meanwhile. ``memory`` reads the bytes that the engine's process has used at most. Cancelling this ends the
    request in flight.
    """
    probe = Probe(adapter, deployment, seed=seed)
    cells = {length: _Cell(probe.asked(length, OUTPUT_TOKENS)) for length in _lengths(deployment)}
    plan = Plan(list(cells), runs=RUNS, budget_s=budget_s, spare=SPARE_LENGTH)
    traffic = traffic or Traffic()
    done = 0

    def tell(note: str) -> None:
        progress(deployment.id, done, done + plan.runs_left, note)

    tell("warming up")
    try:
        warm_up = await _run(probe, min(cells), traffic, idle_limit_s, WARM_UP_LIMIT_S)
    except EngineError as error:
        for cell in cells.values():
            cell.failed = _cause(error)
    else:
        probe.calibrate(warm_up)
        while (length := plan.next()) is not None:
            tell(f"prompt of {length} tokens")
            cell = cells[length]
            try:
                run = await _run(probe, length, traffic, idle_limit_s, RUN_LIMIT_S)
            except EngineError as error:
                cell.failed = _cause(error)
                plan.failed(length)
                continue
            probe.calibrate(run)
            cell.add(run, memory())
            plan.ran(length, run.total_s)
            done += 1
            if run.disturbed:
                plan.cut()
    tell("measured")
    return QuickResult(tuple(cell.record(deployment) for cell in cells.values() if cell.runs or cell.failed))


@dataclass(slots=True)
class _Cell:
    asked: Asked
    failed: str = ""
    peak_memory_bytes: int | None = None
    runs: list[Run] = field(default_factory=list)

    def add(self, run: Run, memory_bytes: int | None) -> None:
        self.runs.append(run)
        if memory_bytes is not None:
            self.peak_memory_bytes = max(memory_bytes, self.peak_memory_bytes or 0)

    def record(self, deployment: Deployment) -> Record:
        return summarise(
            Kind.QUICK,
            deployment,
            self.asked,
            self.runs,
            failed=self.failed,
            peak_memory_bytes=self.peak_memory_bytes,
        )


def _lengths(deployment: Deployment) -> list[int]:
    """The wanted lengths as far as the context allows, shortest first."""
    if deployment.context is None:
        return [*LENGTHS, SPARE_LENGTH]
    most = max(1, int((deployment.context - OUTPUT_TOKENS) * _CONTEXT_SHARE))
    lengths = sorted({min(length, most) for length in LENGTHS})
    return [*lengths, SPARE_LENGTH] if most >= SPARE_LENGTH else lengths


async def _run(probe: Probe, length: int, traffic: Traffic, idle_limit_s: float, limit_s: float) -> Run:
    with suppress(Disturbed):
        return await traffic.quietly(
            lambda: probe.run(length, OUTPUT_TOKENS, limit_s=limit_s), idle_limit_s=idle_limit_s
        )
    begun, running = traffic.begun, traffic.running
    run = await probe.run(length, OUTPUT_TOKENS, limit_s=limit_s)
    return replace(run, disturbed=running > 0 or traffic.begun != begun)


def _cause(error: EngineError) -> str:
    return f"{type(error).__name__}: {error.message}"
