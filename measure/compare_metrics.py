"""What is compared: the metrics of matched cells, and how far a machine drifts between two measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, variance

from measure.compare_cells import Pair
from measure.compare_interval import Change, Sides, changes, middle
from measure.records import Cell, Record, Run

ASSUMED_DRIFT = 0.03
"""Drift of a machine whose records do not tell it yet: desktop CPUs and small servers drift by 2 to 5 % in minutes."""
ASSUMED_REPEATS = 2


@dataclass(frozen=True, slots=True)
class Metric:
    """A value of each run, or, for what only records have, of each record; and whether more of it is better."""

    name: str
    unit: str
    of_run: Callable[[Run], float | None] | None = None
    of_record: Callable[[Record], float | None] = lambda record: None
    more_is_better: bool = False

    def groups(self, records: Iterable[Record]) -> list[list[float]]:
        """Return the values, those that are not independent together: the requests of one round.

        Runs with live traffic beside them are left out where there are others.
        """
        found: list[list[float]] = []
        for record in records:
            if self.of_run is None:
                found.append([value] if (value := self.of_record(record)) else [])
                continue
            rounds: dict[int, list[float]] = {}
            counted = [run for run in record.runs if not run.disturbed] or record.runs
            for place, run in enumerate(counted):
                if value := self.of_run(run):
                    rounds.setdefault(run.round if record.asked.concurrency > 1 else place, []).append(value)
            found += rounds.values()
        return [values for values in found if values]


TTFT = Metric("TTFT", "s", lambda run: run.ttft_s)
DECODE = Metric("decode", "tok/s", lambda run: 1 / tpot if (tpot := run.tpot_s) else None, more_is_better=True)
TOTAL = Metric("total", "s", lambda run: run.total_s)
MEMORY = Metric("memory", "bytes", of_record=lambda record: record.peak_memory_bytes)
GPU_MEMORY = Metric("GPU memory", "bytes", of_record=lambda record: record.peak_gpu_memory_bytes)
METRICS = (TTFT, DECODE, TOTAL, MEMORY, GPU_MEMORY)


@dataclass(frozen=True, slots=True)
class Finding:
    """One metric: the medians on both sides, in the metric's unit, and what changed.

    Over several ``cells``, ``before`` and ``after`` are the geometric means of their medians; ``better`` and ``worse``
    are the numbers of cells in which such a difference is shown. ``doubt`` is what else may explain a difference: "made
    on a busy machine".
    """

    metric: Metric
    before: float
    after: float
    change: Change
    cells: int = 1
    better: int = 0
    worse: int = 0
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class Drift:
    """How far apart two measurements of the same thing lie: the standard deviation of the logarithm of a median.

    ``repeats`` measurements beyond the first of a cell have taught it; with 0 it is ``ASSUMED_DRIFT``.
    """

    deviation: float
    repeats: int


def drift_of(metric: Metric, history: Iterable[Record]) -> Drift:
    """Return the drift between quiet measurements of a cell with nothing changed, pooled over all cells.

    What is assumed weighs as much as ``ASSUMED_REPEATS`` of them: two that agree by chance prove no steady machine.
    """
    cells: dict[tuple[str, Cell], list[float]] = {}
    for record in history:
        if not record.disturbed and (groups := metric.groups([record])):
            cells.setdefault((record.fingerprint, record.cell), []).append(math.log(middle(groups)))
    repeated = [logs for logs in cells.values() if len(logs) > 1]
    repeats = sum(len(logs) - 1 for logs in repeated)
    squares = ASSUMED_REPEATS * ASSUMED_DRIFT**2 + sum(variance(logs) * (len(logs) - 1) for logs in repeated)
    return Drift(math.sqrt(squares / (ASSUMED_REPEATS + repeats)), repeats)


def find(metric: Metric, pairs: Sequence[Pair], drift: Drift) -> tuple[list[Finding | None], Finding | None]:
    """Return what was found in each pair of cells, and over all; ``None`` where a side has no values of the metric."""
    values: list[Sides | None] = [_values(metric, pair) for pair in pairs]
    known = [sides for sides in values if sides is not None]
    if not known:
        return [None for _ in pairs], None
    moved = 0.0
    if metric.of_run is not None:
        # A side that was measured several times drifts less in the mean.
        times = [min(len(side) for side in sides) for sides in zip(*((p.before, p.after) for p in pairs), strict=True)]
        moved = drift.deviation * math.sqrt(sum(1 / each for each in times))
    each, together = changes(known, drift=moved)
    if metric.of_run is None and len(known) > 1:
        # One reading a record is no distribution, but all of a side together are: it is one process's memory.
        before = [group for sides in known for group in sides.before]
        after = [group for sides in known for group in sides.after]
        together = changes([Sides(before, after)])[1]
    shown = [change for change in each if change.shown]
    better = sum((change.ratio > 1.0) == metric.more_is_better for change in shown)
    found = iter([Finding(metric, middle(b), middle(a), c) for (b, a, _), c in zip(known, each, strict=True)])
    overall = Finding(
        metric,
        geometric_mean([middle(sides.before) for sides in known]),
        geometric_mean([middle(sides.after) for sides in known]),
        together,
        cells=len(known),
        better=better,
        worse=len(shown) - better,
        doubt=_doubt(pairs) if metric.of_run is not None else "",
    )
    return [None if sides is None else next(found) for sides in values], overall


def _doubt(pairs: Sequence[Pair]) -> str:
    records = [record for pair in pairs for record in (*pair.before, *pair.after)]
    if any(record.disturbed for record in records):
        return "made beside live traffic"
    return "made on a busy machine" if any(record.machine and record.machine.busy for record in records) else ""


def _values(metric: Metric, pair: Pair) -> Sides | None:
    if metric is TOTAL and not pair.same_output:
        return None
    before, after = metric.groups(pair.before), metric.groups(pair.after)
    length = math.log(pair.longer) if metric in (TTFT, TOTAL) else 0.0
    return Sides(before, after, length) if before and after else None
