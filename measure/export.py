"""Records for other programs and for documents: CSV, JSON Lines, Parquet, a Markdown table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from enum import StrEnum

import msgspec

from measure.machine import Machine
from measure.markdown import to_markdown
from measure.record_fields import identity
from measure.records import Asked, Beside, Record

_PARTS: Mapping[str, type[Asked] | type[Beside] | type[Machine]] = {
    "asked": Asked,
    "machine": Machine,
    "beside": Beside,
}
"""Fields of a record that become several columns."""
_RAW = frozenset({"runs", "alone"})
"""What has no place in a table: the raw samples, of which only the number is told."""


class Format(StrEnum):
    """How records are written."""

    CSV = "csv"
    JSONL = "jsonl"
    MARKDOWN = "markdown"
    PARQUET = "parquet"


def export(records: Sequence[Record], form: Format) -> bytes:
    """Return the records in a format; JSON Lines and Parquet hold all of them, raw samples too, and can be imported.

    Raises ``MissingExtra`` for Parquet where pyarrow is not installed.
    """
    if form is Format.PARQUET:
        from measure.parquet import to_parquet

        return to_parquet(records)
    writers = {Format.CSV: to_csv, Format.JSONL: to_jsonl, Format.MARKDOWN: to_markdown}
    return writers[form](records).encode()


def to_jsonl(records: Iterable[Record]) -> str:
    """Return one record a line, whole."""
    return "".join(msgspec.json.encode(record).decode() + "\n" for record in records)


def to_csv(records: Iterable[Record]) -> str:
    """Return one record a line, medians without raw samples; the same columns whatever the records hold."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns())
    writer.writerows([_plain(value) for value in row(record)] for record in records)
    return text.getvalue()


def columns() -> list[str]:
    """Return the names of the columns of ``row``: an ``id``, then a record's fields, ``asked_prompt_tokens``, …"""
    names = ["id"]
    for field in fields(Record):
        part = _PARTS.get(field.name)
        inner = [f"{field.name}_{each.name}" for each in fields(part) if each.name not in _RAW] if part else []
        names += inner or [field.name]
    return names


def row(record: Record) -> list[object]:
    """Return flat values: lengths in tokens, times in seconds, memory in bytes; ``runs`` is the number of runs."""
    values: list[object] = [identity(record)]
    for field in fields(Record):
        value = getattr(record, field.name)
        if part := _PARTS.get(field.name):
            names = [each.name for each in fields(part) if each.name not in _RAW]
            values += [getattr(value, name, None) for name in names]
        else:
            values.append(len(value) if field.name in _RAW else value)
    return values


def _plain(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case Mapping():
            return " ".join(f"{name}={each}" for name, each in sorted(value.items()))
        case tuple():
            return "; ".join(str(each) for each in value)
        case _:
            return str(value)
