"""Two selections of records side by side: refused unless one variable differs, else what changed and how sure it is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from measure.compare_cells import Pair, match
from measure.compare_interval import CONFIDENCE
from measure.compare_metrics import METRICS, Drift, Finding, drift_of, find
from measure.compare_notes import cautions, drift_note, length_note
from measure.compare_variables import NAMES, Difference, Key, NotComparable, differences, key, setting_names
from measure.compare_words import verdict
from measure.record_fields import identity
from measure.records import Record


@dataclass(frozen=True, slots=True)
class CellFindings:
    """The findings of one cell; its two keys are the same unless the cells are what differs."""

    before_key: Key
    after_key: Key
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs, and by how much: ``overall`` over all cells that both sides hold, then each cell.

    ``allowed`` are the variables that differ in addition, with the reader's leave; ``left_out`` what could not be
    matched, with the reason; ``notes`` what a reader should know before believing it.
    """

    sides: tuple[str, str]
    differs: tuple[Difference, ...]
    allowed: tuple[Difference, ...]
    overall: tuple[Finding, ...]
    cells: tuple[CellFindings, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values only, as JSON has them. Changes are parts of the value before: 0.1 is 10 % more."""
        return {
            "differs": [_plain_difference(difference) for difference in self.differs],
            "allowed": [_plain_difference(difference) for difference in self.allowed],
            "confidence": CONFIDENCE,
            "overall": [self._plain(finding) for finding in self.overall],
            "cells": [
                {
                    "before": cell.before_key._asdict(),
                    "after": cell.after_key._asdict(),
                    "metrics": [self._plain(finding) for finding in cell.findings],
                }
                for cell in self.cells
            ],
            "left_out": list(self.left_out),
            "notes": list(self.notes),
        }

    def _plain(self, finding: Finding) -> dict[str, Any]:
        change = finding.change
        interval = None if change.low is None or change.high is None else [change.low - 1.0, change.high - 1.0]
        return {
            "metric": finding.metric.name,
            "unit": finding.metric.unit,
            "before": finding.before,
            "after": finding.after,
            "change": change.ratio - 1.0,
            "interval": interval,
            "cells": finding.cells,
            "better_in": finding.better,
            "worse_in": finding.worse,
            "verdict": verdict(finding, self.sides[1]),
        }


def compare(
    before: Sequence[Record],
    after: Sequence[Record],
    *,
    allow: Collection[str] = (),
    history: Sequence[Record] = (),
    sides: tuple[str, str] = ("A", "B"),
) -> Comparison:
    """Compare ``before`` with ``after``, cell by cell; ``sides`` are their names for the reader.

    ``allow`` names variables that may differ in addition to the one. From ``history``, more records of this machine, is
    learned how far it drifts between two measurements of the same thing; the intervals are widened by that. Raises
    ``NotComparable``.
    """
    _require_known(allow, [*before, *after])
    now = {identity(record) for record in after}
    if shared := now.intersection(identity(record) for record in before):
        raise NotComparable(f"both selections hold the same records ({len(shared)})", fix="Narrow one of them.")
    failed = [f"{key(record)}: {record.failed}" for record in (*before, *after) if not record.runs]
    before, after = [r for r in before if r.runs], [r for r in after if r.runs]
    for side, records in zip(sides, (before, after), strict=True):
        if not records:
            raise NotComparable(f"{side} has no run that succeeded", fix="; ".join(dict.fromkeys(failed)))
    matched = match(before, after, sides)
    found = [*differences(before, after), *matched.differs]
    differs = tuple(difference for difference in found if difference.name not in allow)
    _require_one(differs, sides)
    left_out = tuple(dict.fromkeys([*failed, *matched.left_out]))
    if not matched.pairs:
        raise NotComparable("there is no cell that both sides have", fix="\n  ".join(left_out))
    if not {record.fingerprint for record in before}.isdisjoint(record.fingerprint for record in after):
        # The same thing on both sides: what differs between them is what is asked, and no part of the answer.
        history = [record for record in history if identity(record) not in now]
    overall, cells, drifts = _findings(matched.pairs, history)
    allowed = tuple(difference for difference in found if difference.name in allow)
    notes = (drift_note(drifts), *length_note(matched.pairs), *cautions(before, after, sides))
    return Comparison(sides, differs, allowed, overall, cells, left_out, notes)


def _require_known(allow: Collection[str], records: Sequence[Record]) -> None:
    known = [*NAMES, *sorted(setting_names(records))]
    for name in allow:
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise NotComparable(f"{name!r} is no variable", fix=f"{hint}There are: {', '.join(known)}.")


def _require_one(differs: Sequence[Difference], sides: tuple[str, str]) -> None:
    if mixed := [difference.name for difference in differs if difference.several]:
        raise NotComparable(
            f"a selection holds several of: {', '.join(mixed)}",
            differs,
            fix=f"Narrow it, for example with {mixed[0]}=…, or accept the mixture with --allow {mixed[0]}.",
        )
    if len(differs) > 1:
        names = [difference.name for difference in differs]
        raise NotComparable(
            f"{len(differs)} variables differ between {sides[0]} and {sides[1]}, so what is seen could come from any",
            differs,
            fix=f"Narrow the selections, or accept all but one: {' '.join(f'--allow {name}' for name in names[1:])}.",
        )


def _findings(
    pairs: Sequence[Pair], history: Iterable[Record]
) -> tuple[tuple[Finding, ...], tuple[CellFindings, ...], dict[str, Drift]]:
    history = list(history)
    overall: list[Finding] = []
    of_cells: list[list[Finding]] = [[] for _ in pairs]
    drifts: dict[str, Drift] = {}
    for metric in METRICS:
        drift = drift_of(metric, history)
        each, together = find(metric, pairs, drift)
        for findings, finding in zip(of_cells, each, strict=True):
            findings += [finding] if finding else []
        if together:
            overall.append(together)
            if metric.of_run:
                drifts[metric.name] = drift
    cells = tuple(CellFindings(p.before_key, p.after_key, tuple(f)) for p, f in zip(pairs, of_cells, strict=True))
    return tuple(overall), cells, drifts


def _plain_difference(difference: Difference) -> dict[str, str]:
    return {"name": difference.name, "before": difference.before, "after": difference.after}
