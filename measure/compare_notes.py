"""What a reader should know before believing a comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from measure.compare_cells import Pair
from measure.compare_metrics import ASSUMED_DRIFT, Drift
from measure.records import Record

_LENGTHS_ALIKE = 0.02


def drift_note(drifts: Mapping[str, Drift]) -> str:
    """Return how much of the intervals is this machine's drift, by metric."""
    if not any(drift.repeats for drift in drifts.values()):
        return (
            f"the intervals hold a drift of {ASSUMED_DRIFT:.0%} between two measurements, which is assumed: "
            "measure both sides once more, and it is known"
        )
    told = ", ".join(f"{name} {drift.deviation:.1%}" for name, drift in drifts.items())
    repeats = max(drift.repeats for drift in drifts.values())
    return f"the intervals hold this machine's drift between two measurements: {told} (learned from {repeats} repeats)"


def length_note(pairs: Iterable[Pair]) -> list[str]:
    """Return how far prompts of the same asking differ in length, when they do."""
    most = max((max(pair.longer, 1 / pair.longer) for pair in pairs), default=1.0) - 1.0
    if most < _LENGTHS_ALIKE:
        return []
    return [f"prompts were up to {most:.0%} longer on one side: the intervals of TTFT and total cover that"]


def cautions(before: Sequence[Record], after: Sequence[Record], sides: tuple[str, str]) -> list[str]:
    """Return in what the records of either side are not as they should be, counted."""
    notes = []
    for side, records in zip(sides, (before, after), strict=True):
        reasons = Counter(
            reason
            for record in records
            for reason in (
                *(["made beside live traffic"] if record.disturbed else []),
                *(["made on a busy machine"] if record.machine and record.machine.busy else []),
                *(["imported"] if record.foreign else []),
                *([f"output not normal: {', '.join(record.faults)}"] if record.faults else []),
                *(["engine and client disagree about the time"] if record.disagreement else []),
            )
        )
        notes += [f"{side}: {count} of {len(records)} records: {reason}" for reason, count in reasons.items()]
    versions = [sorted({record.paceline for record in records}) for records in (before, after)]
    if versions[0] != versions[1]:
        told = " and ".join(f"{side} by {', '.join(v)}" for side, v in zip(sides, versions, strict=True))
        notes.append(f"measured by different versions of Paceline: {told}")
    return notes
