"""A comparison as tables and sentences for people."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.cli.output import Row, styled, table
from measure.compare import CellFindings, Comparison
from measure.compare_interval import CONFIDENCE, Change
from measure.compare_metrics import DECODE, TOTAL, TTFT, Finding, Metric
from measure.compare_variables import CELL, Difference, Key
from measure.compare_words import interval, percent, verdict
from measure.record_words import mebibytes, seconds, speed

_IN_CELLS = (TTFT, DECODE, TOTAL)
_COLUMNS = {"prompt": "PROMPT", "limit": "LIMIT", "concurrency": "CONC"}


def comparison_page(comparison: Comparison) -> str:
    """Return what differs, the verdict per metric, every cell, and what to know before believing it."""
    parts = ["\n".join(_heading(comparison)), verdict_table(comparison)]
    if len(comparison.cells) > 1:
        parts.append(cell_table(comparison))
    if comparison.left_out:
        parts.append(_list("Left out", comparison.left_out))
    parts.append(_list("Notes", comparison.notes))
    return "\n\n".join(parts)


def verdict_table(comparison: Comparison) -> str:
    """Return one line per metric over all cells."""
    before, after = comparison.sides
    cells = len(comparison.cells)
    over = f"OVER {cells} CELLS" if cells > 1 else f"PROMPT {comparison.cells[0].before_key.prompt}"
    rows: list[Row] = [
        (
            finding.metric.name,
            _value(finding.metric, finding.before),
            _value(finding.metric, finding.after),
            percent(finding.change),
            interval(finding.change),
            _coloured(finding, after),
        )
        for finding in comparison.overall
    ]
    return table((over, before.upper(), after.upper(), "CHANGE", f"{CONFIDENCE:.0%} INTERVAL", "VERDICT"), rows)


def cell_table(comparison: Comparison) -> str:
    """Return one line per cell: both medians of each metric, and the change where one is shown."""
    varying = {difference.name for difference in (*comparison.differs, *comparison.allowed) if difference.name in CELL}
    head = [title for name, title in _COLUMNS.items() if name not in varying]
    metrics = [m for m in _IN_CELLS if any(f.metric is m for cell in comparison.cells for f in cell.findings)]
    rows: list[Row] = [
        (*_place(cell.before_key, varying), *(_cell(cell, metric) for metric in metrics)) for cell in comparison.cells
    ]
    return table((*head, *(metric.name.upper() for metric in metrics)), rows)


def _place(key: Key, varying: set[str]) -> list[int]:
    return [getattr(key, name) for name in _COLUMNS if name not in varying]


def _cell(cell: CellFindings, metric: Metric) -> str:
    finding = next((finding for finding in cell.findings if finding.metric is metric), None)
    if finding is None:
        return ""
    return f"{_value(metric, finding.before)} → {_value(metric, finding.after)}  {_short(finding.change)}"


def _short(change: Change) -> str:
    if change.low is None:
        return f"({percent(change)}, few runs)"
    return percent(change) if change.shown else "(not shown)"


def _heading(comparison: Comparison) -> list[str]:
    if not comparison.differs and not comparison.allowed:
        return [f"Nothing differs: {' and '.join(comparison.sides)} are the same thing, measured twice."]
    lines = [f"Differs in {_told(difference)}" for difference in comparison.differs]
    lines += [f"Accepted as well: {_told(difference)}" for difference in comparison.allowed]
    if len(lines) > 1:
        lines.append("What is seen may come from either." if len(lines) == 2 else "What is seen may come from any.")
    return lines


def _told(difference: Difference) -> str:
    return f"{styled(difference.name, 'bold')}: {difference.before or 'none'} → {difference.after or 'none'}"


def _coloured(finding: Finding, who: str) -> str:
    text = verdict(finding, who)
    if not finding.change.shown:
        return text
    better = (finding.change.ratio > 1.0) == finding.metric.more_is_better
    return styled(text, "green" if better else "red")


def _value(metric: Metric, value: float) -> str:
    if metric.unit == "bytes":
        return mebibytes(round(value))
    return speed(value) if metric is DECODE else seconds(value)


def _list(title: str, lines: Sequence[str]) -> str:
    return "\n".join([styled(title, "bold"), *(f"  {line}" for line in lines)])
