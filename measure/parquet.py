"""Whole records in Parquet, with a schema that is the same whatever they hold."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from measure.extras import optional
from measure.record_fields import identity
from measure.records import Record


class ParquetError(ValueError):
    """The data is no Parquet."""


def to_parquet(records: Sequence[Record]) -> bytes:
    """Return a file with one row a record, nested as records are, and an ``id``. Raises ``MissingExtra``."""
    arrow, parquet = _arrow(), _parquet()
    schema = arrow.schema([arrow.field("id", arrow.string()), *_struct(arrow, Record)])
    rows = [{"id": identity(record), **record.to_dict()} for record in records]
    target = io.BytesIO()
    parquet.write_table(arrow.Table.from_pylist(rows, schema=schema), target, compression="zstd")
    return target.getvalue()


def from_parquet(data: bytes) -> list[dict[str, Any]]:
    """Return the rows of a file as plain values. Raises ``ParquetError`` and ``MissingExtra``."""
    arrow, parquet = _arrow(), _parquet()
    try:
        table = parquet.read_table(io.BytesIO(data))
        rows: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts="strict")
    except (arrow.ArrowException, OSError, KeyError) as error:
        raise ParquetError(str(error)) from None
    return rows


def _arrow() -> Any:
    return optional("pyarrow", extra="parquet", purpose="Parquet")


def _parquet() -> Any:
    return optional("pyarrow.parquet", extra="parquet", purpose="Parquet")


def _struct(arrow: Any, kind: Any) -> list[Any]:
    hints = get_type_hints(kind)
    return [arrow.field(field.name, _type(arrow, hints[field.name])) for field in fields(kind)]


def _type(arrow: Any, hint: Any) -> Any:
    """The Arrow type of a field's type hint."""
    if isinstance(hint, UnionType):
        (inner,) = (each for each in get_args(hint) if each is not NoneType)
        return _type(arrow, inner)
    if get_origin(hint) is tuple:
        return arrow.list_(_type(arrow, get_args(hint)[0]))
    if get_origin(hint) is Mapping:
        return arrow.map_(*(_type(arrow, each) for each in get_args(hint)))
    if is_dataclass(hint):
        return arrow.struct(_struct(arrow, hint))
    for python, made in ((str, arrow.string), (bool, arrow.bool_), (int, arrow.int64), (float, arrow.float64)):
        if issubclass(hint, python):
            return made()
    raise TypeError(f"no Arrow type for {hint}")
