"""Other people's records, read from a file: checked one by one, so that nothing half-read is kept."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec

from adapters.heard import NOT_JSON
from measure.parquet import ParquetError, from_parquet
from measure.records import Record, RecordError, Run

_PARQUET_MAGIC = b"PAR1"


class ImportRefused(ValueError):
    """The file holds something that is no record; the message says where."""


def read_records(data: bytes) -> list[Record]:
    """Return the records of a file in JSON Lines or Parquet, as foreign ones.

    Raises ``ImportRefused``, and ``MissingExtra`` for Parquet where pyarrow is not installed.
    """
    found = []
    for place, plain in _parquet(data) if data.startswith(_PARQUET_MAGIC) else _lines(data):
        try:
            record = Record.from_dict(plain)
            _require_sound(record)
        except RecordError as error:
            raise ImportRefused(f"{place}: {error}") from None
        found.append(replace(record, foreign=True))
    if not found:
        raise ImportRefused("the file holds no record")
    return found


def _lines(data: bytes) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield f"line {number}", msgspec.json.decode(line)
        except NOT_JSON as error:
            raise ImportRefused(f"line {number} is no JSON ({error}): records are read from JSON Lines") from None


def _parquet(data: bytes) -> Iterator[tuple[str, Any]]:
    try:
        rows = from_parquet(data)
    except ParquetError as error:
        raise ImportRefused(f"the file cannot be read as Parquet: {error}") from None
    for number, row in enumerate(rows, start=1):
        yield f"row {number}", row


def _require_sound(record: Record) -> None:
    """Raise ``RecordError`` for values that no measurement can have, however well they are typed."""
    try:
        zone = datetime.fromisoformat(record.at).tzinfo
    except ValueError:
        raise RecordError(f"{record.at!r} is no date") from None
    if zone is None:
        raise RecordError(f"the date {record.at!r} has no time zone")
    runs = record.runs if record.beside is None else (*record.runs, *record.beside.alone)
    for run in runs:
        for name, value in _numbers(run):
            if not math.isfinite(value) or value < 0:
                raise RecordError(f"a run has {name} {value}")


def _numbers(run: Run) -> list[tuple[str, float]]:
    values = {name: getattr(run, name) for name in Run.__slots__}
    return [(name, value) for name, value in values.items() if isinstance(value, int | float)]
