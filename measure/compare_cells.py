"""Which cells of two selections stand side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from measure.compare_variables import CELL, Difference, Key, key
from measure.records import Record

PROMPT_TOLERANCE = 0.25
OUTPUT_TOLERANCE = 0.1
"""Token counts that lie further apart than this part of the larger are not the same length. Prompts are ordinary text,
whose length can only be aimed at: what remains of a difference is covered by the intervals."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The records of one cell on both sides.

    ``longer`` is how much longer the prompts after were than those before; 1 where they are the variable.
    ``same_output`` is false where the answers differ in length although the limits do not: total times do not compare.
    """

    before_key: Key
    after_key: Key
    before: tuple[Record, ...]
    after: tuple[Record, ...]
    longer: float
    same_output: bool


@dataclass(frozen=True, slots=True)
class Matched:
    """``differs`` are the variables of the cells themselves; ``left_out`` says which cells have no partner, and why."""

    pairs: tuple[Pair, ...]
    differs: tuple[Difference, ...]
    left_out: tuple[str, ...]


def match(before: Sequence[Record], after: Sequence[Record], sides: tuple[str, str]) -> Matched:
    """Match cells that are the same; where none is, those that differ in what all cells of the sides differ in.

    Cells whose prompts turned out to have other lengths (another tokeniser, a template) are left out. ``sides`` are the
    names for the reader.
    """
    was, now = _by_cell(before), _by_cell(after)
    varying: list[int] = []
    if was.keys().isdisjoint(now):
        varying = [i for i in range(len(CELL)) if {k[i] for k in was}.isdisjoint(k[i] for k in now)]
    partners = {_without(k, varying): k for k in now}
    pairs: list[Pair] = []
    left_out: list[str] = []
    for k, records in was.items():
        partner = partners.pop(_without(k, varying), None)
        if partner is None:
            left_out.append(f"{k}: only in {sides[0]}")
            continue
        others = now[partner]
        read, read_too = _length(records, "prompt"), _length(others, "prompt")
        same_prompts = CELL.index("prompt") not in varying
        if same_prompts and not _same(read, read_too, PROMPT_TOLERANCE):
            left_out.append(f"{k}: {sides[0]} read {read:.0f} tokens, {sides[1]} {read_too:.0f}")
            continue
        wrote, wrote_too = _length(records, "output"), _length(others, "output")
        same_output = CELL.index("limit") in varying or _same(wrote, wrote_too, OUTPUT_TOLERANCE)
        longer = read_too / read if same_prompts and read else 1.0
        pairs.append(Pair(k, partner, tuple(records), tuple(others), longer, same_output))
        if not same_output:
            left_out.append(f"{k}: total time, since {sides[0]} wrote {wrote:.0f} tokens, {sides[1]} {wrote_too:.0f}")
    left_out += [f"{k}: only in {sides[1]}" for k in partners.values()]
    return Matched(tuple(pairs), tuple(_difference(i, was, now) for i in varying), tuple(left_out))


def _by_cell(records: Iterable[Record]) -> dict[Key, list[Record]]:
    cells: dict[Key, list[Record]] = {}
    for record in sorted(records, key=key):
        cells.setdefault(key(record), []).append(record)
    return cells


def _without(k: Key, varying: Sequence[int]) -> tuple[object, ...]:
    return tuple(value for place, value in enumerate(k) if place not in varying)


def _difference(place: int, was: Iterable[Key], now: Iterable[Key]) -> Difference:
    sides = [sorted({k[place] for k in side}) for side in (was, now)]
    before, after = (" and ".join(str(value) for value in values) for values in sides)
    return Difference(CELL[place], before, after, any(len(values) > 1 for values in sides))


def _length(records: Iterable[Record], what: str) -> float:
    runs = [run for record in records for run in record.runs]
    return median(run.prompt_tokens if what == "prompt" else run.output_tokens for run in runs)


def _same(one: float, other: float, tolerance: float) -> bool:
    return abs(one - other) <= tolerance * max(one, other)
