"""A benchmark: the grid of each deployment, then how it is slowed by its neighbours."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from adapters.errors import EngineError
from measure.async_store import AsyncStore
from measure.cell import Rules, measure_cell
from measure.grid import Grid
from measure.host_watch import HostWatch
from measure.pairs import Member, measure_beside, neighbours
from measure.probe import Probe
from measure.quick import measure_quickly
from measure.records import Cell, Kind, Record
from measure.step import Step, Tell
from measure.subject import Subject
from measure.traffic import Disturbed
from measure.walk import Walk
from policies.types import Deployment

RECOVERY_LIMIT_S = 120.0
"""How long an engine that failed is given to answer again."""
_RECOVERY_PAUSE_S = 1.0
_CHECK_TOKENS = (16, 4)
_CHECK_LIMIT_S = 60.0


class Bench:
    """Measures subjects one after the other, and stores each record as soon as it is there.

    What the benchmark ``name`` has on record already, for the same fingerprint and the same askings, is not measured
    again. Every method may raise ``StoreError``, and ``Disturbed`` when live traffic left no room; engine errors end up
    in the records. Cancelling ends what is in flight; nobody else may measure on the same hardware meanwhile.
    """

    def __init__(self, name: str, store: AsyncStore, grid: Grid, rules: Rules, tell: Tell) -> None:
        self.records: list[Record] = []
        """All records of the benchmark so far, those from before an interruption included."""
        self.given_up: dict[str, str] = {}
        """Deployments that were left before their grid was done, and why."""
        self._name = name
        self._store = store
        self._grid = grid
        self._rules = rules
        self._tell = tell

    async def measure_grids(self, subjects: Sequence[Subject]) -> None:
        """Measure the grid of each: alone first, from the least work to the most, then with rising concurrency."""
        for place, subject in enumerate(subjects):
            try:
                await self._measure_grid(subject, len(subjects) - place)
            except EngineError as error:  # it is gone between two cells
                self.given_up[subject.deployment.id] = error.message
            await _settle(subject)

    async def measure_quickly(self, subjects: Sequence[Subject]) -> None:
        """Measure each as a start does: up to five prompt lengths, in about ten seconds."""
        for subject in subjects:
            try:
                adapter = subject.connect()
            except EngineError as error:
                self.given_up[subject.deployment.id] = error.message
                continue
            async with subject.watch() as watch:
                result = await measure_quickly(
                    adapter,
                    subject.deployment,
                    traffic=subject.traffic,
                    progress=lambda id_, done, total, note: self._tell(Step(id_, note, done, total)),
                    idle_limit_s=self._rules.idle_limit_s if self._rules.waits else 0.0,
                )
            for record in result.records:
                await self._keep(record, subject, watch)
            await _settle(subject)

    async def measure_pairs(self, subjects: Sequence[Subject]) -> None:
        """Time each beside itself and beside the next on the same hardware, decoding and prefilling."""
        by_id = {subject.deployment.id: subject for subject in subjects if subject.deployment.id not in self.given_up}
        pairs = list(neighbours([subject.deployment for subject in by_id.values()]))
        for done, (timed, neighbour) in enumerate(pairs):
            self._tell(Step(timed.id, f"beside {neighbour.id}", done, len(pairs)))
            if await self._has_pair(timed, neighbour):
                continue
            subject = by_id[timed.id]
            try:
                members = Member(subject.connect(), timed), Member(by_id[neighbour.id].connect(), neighbour)
            except EngineError as error:
                self.given_up[error.engine] = error.message
                continue
            async with subject.watch(by_id[neighbour.id]) as watch:
                records = await measure_beside(
                    *members,
                    traffic=subject.traffic,
                    idle_limit_s=self._rules.idle_limit_s,
                )
            if not records:
                raise Disturbed
            for record in records:
                await self._keep(record, subject, watch)
            await _settle(subject, by_id[neighbour.id])

    async def _measure_grid(self, subject: Subject, subjects_left: int) -> None:
        """Measure what is not on record; the time that is left is that of ``subjects_left`` such grids."""
        probe = Probe(subject.connect(), subject.deployment)
        walk = Walk(self._grid, subject.deployment, probe.operation)
        on_record = {record.cell: record for record in await self._on_record(subject.deployment, Kind.GRID)}
        clock, done = asyncio.get_running_loop().time, 0
        while (cell := walk.next()) is not None:
            left_s = walk.left_s()
            left_s = None if left_s is None else left_s * subjects_left
            here = subject.deployment.id
            self._tell(Step(here, _note(cell), done, done + walk.left(), left_s))
            record = on_record.get(cell)
            kept = record is not None and (bool(record.failed) or record.asked.runs >= self._rules.runs)
            begun = clock()
            if record is None or not kept:
                record = await self._measure_cell(subject, probe, cell)
            walk.took(record, None if kept else clock() - begun)
            done += 1
            self.records.append(record)
            self._tell(Step(here, _note(cell), done, done + walk.left(), record=record, kept=kept))
            if here in self.given_up:
                return

    async def _measure_cell(self, subject: Subject, probe: Probe, cell: Cell) -> Record:
        """Measure one cell, and after a failure whether the engine has recovered."""
        probe.adapter = subject.connect()
        watch = subject.watch()
        record = await measure_cell(
            probe, cell, self._rules, subject.traffic, watch, settings=subject.settings, bench=self._name
        )
        if record.failed:
            after_s = await _recovery_s(subject, probe)
            if after_s is None:
                words = f"the engine did not answer again within {RECOVERY_LIMIT_S:g} s"
                self.given_up[subject.deployment.id] = words
            else:
                words = f"the engine answered again after {after_s:.1f} s"
            record = replace(record, failed=f"{record.failed}; {words}")
        await self._store.add(record)
        return record

    async def _keep(self, record: Record, subject: Subject, watch: HostWatch) -> None:
        """Store what another measurement made, with what is known here beside it."""
        record = replace(
            record,
            bench=self._name,
            settings=dict(subject.settings),
            machine=watch.machine,
            peak_memory_bytes=watch.peak_memory_bytes,
            peak_gpu_memory_bytes=watch.peak_gpu_memory_bytes,
        )
        await self._store.add(record)
        self.records.append(record)

    async def _on_record(self, deployment: Deployment, kind: Kind) -> list[Record]:
        """What this benchmark has of a deployment's present fingerprint."""
        records = await self._store.records(deployment.fingerprint, kind=kind)
        return [record for record in records if record.bench == self._name]

    async def _has_pair(self, timed: Deployment, neighbour: Deployment) -> bool:
        found = [
            record
            for record in await self._on_record(timed, Kind.PAIR)
            if record.beside is not None and record.beside.fingerprint == neighbour.fingerprint
        ]
        self.records += found
        return bool(found)


async def _settle(*subjects: Subject) -> None:
    """Wait until engines that keep a core busy after their last answer are quiet: the next one is to be alone."""
    longest_s = 0.0
    for subject in subjects:
        with suppress(EngineError):
            longest_s = max(longest_s, subject.connect().lingers_s)
    if longest_s:
        await asyncio.sleep(longest_s)


async def _recovery_s(subject: Subject, probe: Probe) -> float | None:
    """Ask a failed engine something small until it answers. Returns the seconds; ``None`` when it did not in time."""
    clock = asyncio.get_running_loop().time
    begun = clock()
    while clock() - begun < RECOVERY_LIMIT_S:
        try:
            probe.adapter = subject.connect()
            await probe.run(*_CHECK_TOKENS, limit_s=_CHECK_LIMIT_S)
        except EngineError:
            await asyncio.sleep(_RECOVERY_PAUSE_S)
        else:
            return clock() - begun
    return None


def _note(cell: Cell) -> str:
    several = f", {cell.concurrency} at once" if cell.concurrency > 1 else ""
    return f"{cell.prompt_tokens} tokens in, {cell.output_tokens} out{several}"
