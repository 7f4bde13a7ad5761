"""Records as tables for people."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from gateway.cli.output import Row, styled, table
from measure.record_fields import identity
from measure.record_words import engine, marks, mebibytes, output, precision, prompt, seconds, speed
from measure.records import Record, Run

LIST = (
    *("ID", "DATE", "KIND", "DEPLOYMENT", "MODEL", "PRECISION", "ENGINE", "PROMPT", "LIMIT", "CONC"),
    *("TTFT", "MAX", "DECODE", "MEMORY", "NORMAL", "NOTE"),
)


def record_table(records: Iterable[Record]) -> str:
    """Return one record a line."""
    rows: list[Row] = [
        (
            identity(record),
            record.at[:16].replace("T", " "),
            record.kind.value,
            record.deployment,
            record.model,
            precision(record),
            engine(record),
            prompt(record),
            record.asked.output_tokens,
            record.asked.concurrency,
            "failed" if record.failed else seconds(record.ttft_s),
            seconds(record.ttft_max_s),
            speed(record.decode_per_s),
            mebibytes(record.peak_memory_bytes),
            output(record),
            ", ".join(marks(record)),
        )
        for record in records
    ]
    return table(LIST, rows)


def record_page(record: Record) -> str:
    """Return every field of a record that has a value, and its raw samples."""
    from measure.export import columns, row

    values = {name: value for name, value in zip(columns(), row(record), strict=True) if _told(value)}
    width = max(map(len, values))
    lines = [f"{styled(f'{name:{width}}', 'dim')}  {_worded(name, value)}" for name, value in values.items()]
    parts = ["\n".join(lines)]
    if record.runs:
        parts.append(_runs(record.runs))
    if record.beside:
        parts.append(f"{styled('The same request alone, in turns with it', 'bold')}\n{_runs(record.beside.alone)}")
    return "\n\n".join(parts)


def _runs(runs: Iterable[Run]) -> str:
    """The raw samples, without the columns in which there is nothing."""
    runs = list(runs)
    names = [
        field.name
        for field in fields(Run)
        if any(_told(getattr(run, field.name)) for run in runs) or field.name.endswith("_tokens")
    ]
    rows: list[Row] = [
        (number, *(_worded(name, getattr(run, name)) for name in names)) for number, run in enumerate(runs, start=1)
    ]
    return table(("RUN", *(name.upper().replace("_", " ") for name in names)), rows)


def _told(value: object) -> bool:
    return value is not None and value not in ("", (), {}) and value is not False


def _worded(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, int) and name.endswith("_bytes"):
        return f"{mebibytes(value)} ({value} bytes)"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return " ".join(f"{key}={each}" for key, each in value.items())
    return "" if value is None else str(value)
