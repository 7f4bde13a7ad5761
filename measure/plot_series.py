"""Records as lines to draw: one for each deployment, from medians with the range of the runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from measure.compare_metrics import DECODE, TTFT, Metric
from measure.record_words import engine, precision
from measure.records import Kind, Record

_ALONE = "one request at a time"
_LENGTH = "prompt length (tokens)"


@dataclass(frozen=True, slots=True)
class Point:
    """The median at one place, and the lowest and highest run."""

    x: int
    middle: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Line:
    """A deployment's points from left to right."""

    label: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One diagram. ``note`` says what was held fixed, ``ticks`` are the places that were asked for."""

    title: str
    note: str
    x: str
    ticks: tuple[int, ...]
    y: str
    y_is_log: bool
    lines: tuple[Line, ...]


def panels(records: Iterable[Record]) -> tuple[Panel, ...]:
    """Return TTFT over prompt length, and decode speed over concurrency (over prompt length where there is only one).

    Records beside a neighbour or with a cached prefix are left out, as are panels without a point.
    """
    usable = [r for r in records if r.runs and r.kind is not Kind.PAIR and not r.asked.prefix_tokens]
    alone = [r for r in usable if r.asked.concurrency == 1]
    grid, held = _most_concurrencies(usable)
    ttft = Panel("Time to first token", _ALONE, _LENGTH, _lengths(alone), "median TTFT (s)", True, ())
    if grid:
        asked = tuple(sorted({r.asked.concurrency for r in grid}))
        title, x, y = "Decode speed per request", "concurrent requests", "median decode speed (tokens/s)"
        decode = Panel(title, held, x, asked, y, False, ())
    else:
        decode = Panel("Decode speed", _ALONE, _LENGTH, _lengths(alone), "median decode speed (tokens/s)", False, ())
    names = _labels(usable)
    made = (
        _with_lines(ttft, TTFT, alone, names, _prompt),
        _with_lines(decode, DECODE, grid or alone, names, _concurrency if grid else _prompt),
    )
    return tuple(panel for panel in made if panel.lines)


def _prompt(record: Record) -> int:
    return record.prompt_tokens or record.asked.prompt_tokens


def _concurrency(record: Record) -> int:
    return record.asked.concurrency


def _lengths(records: Iterable[Record]) -> tuple[int, ...]:
    return tuple(sorted({record.asked.prompt_tokens for record in records}))


def _with_lines(
    panel: Panel, metric: Metric, records: Sequence[Record], names: dict[str, str], place: Callable[[Record], int]
) -> Panel:
    lines = []
    for name, label in names.items():
        if points := _points([record for record in records if _line(record) == name], metric, place):
            lines.append(Line(label, points))
    return replace(panel, lines=tuple(lines))


def _points(records: Iterable[Record], metric: Metric, place: Callable[[Record], int]) -> tuple[Point, ...]:
    """One point for each asked cell, at its real length; limits are taken together."""
    cells: dict[tuple[int, int], list[Record]] = {}
    for record in records:
        cells.setdefault((record.asked.prompt_tokens, record.asked.concurrency), []).append(record)
    points = []
    for cell in cells.values():
        if values := [value for group in metric.groups(cell) for value in group]:
            x = round(median(place(record) for record in cell))
            points.append(Point(x, median(values), min(values), max(values)))
    return tuple(sorted(points, key=lambda point: point.x))


def _most_concurrencies(records: Iterable[Record]) -> tuple[list[Record], str]:
    """The records of the prompt length and limit that were measured at most concurrencies, by most deployments."""
    shapes: dict[tuple[int, int], list[Record]] = {}
    for record in records:
        shapes.setdefault((record.asked.prompt_tokens, record.asked.output_tokens), []).append(record)
    widths = {shape: len({(_line(r), r.asked.concurrency) for r in group}) for shape, group in shapes.items()}
    several = [shape for shape, group in shapes.items() if len({r.asked.concurrency for r in group}) > 1]
    if not several:
        return [], ""
    prompt, limit = max(several, key=lambda shape: (widths[shape], -shape[0], -shape[1]))
    return shapes[prompt, limit], f"prompts of {prompt} tokens, answers of {limit}"


def _line(record: Record) -> str:
    return f"{record.deployment}\n{record.fingerprint}"


def _labels(records: Iterable[Record]) -> dict[str, str]:
    """A label for each line, the shortest that tells them apart: deployment, then precision and engine, …"""
    first = {_line(record): record for record in sorted(records, key=lambda r: (r.deployment, r.fingerprint, r.at))}
    labels = {line: record.deployment for line, record in first.items()}
    for more in (precision, engine, lambda record: record.hardware, lambda record: record.fingerprint[:6]):
        counts = Counter(labels.values())
        labels = {
            line: f"{label}, {more(first[line])}" if counts[label] > 1 else label for line, label in labels.items()
        }
    return labels
