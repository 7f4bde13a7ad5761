"""Selections of records as they are typed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.cli.output import UserError

HELP = (
    "NAME=VALUE[,NAME=VALUE…]: all hold. VALUE may hold * for anything, a|b for either, 64..1024 for a range."
    " A word alone is a record's or a deployment's id."
)


@contextmanager
def selecting() -> Iterator[None]:
    """Turn a selection in the block that is no selection, or finds nothing, into a ``UserError``."""
    from measure.selection import SelectionError

    try:
        yield
    except SelectionError as error:
        raise UserError(error.message, fix=error.fix) from None


def fields_help() -> str:
    """Return the names that a selection may use, one a line, for a command's help."""
    from measure.record_fields import FIELDS

    width = max(map(len, FIELDS))
    return "\n".join(f"  {name:{width}}  {field.help}" for name, field in FIELDS.items())
