"""JSON Schema, as far as a check needs it: one line about the first thing that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LONGEST_LINE = 200


def schema_problem(value: object, schema: Mapping[str, Any]) -> str:
    """Return where ``value`` breaks ``schema`` (draft 2020-12 unless it says otherwise), and how; ``""`` when not."""
    from jsonschema import ValidationError, validators

    try:
        validators.validator_for(dict(schema))(dict(schema)).validate(value)
    except ValidationError as error:
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
        return f"{where.lstrip('.')}: {error.message}"[:LONGEST_LINE].removeprefix(": ")
    return ""


def unusable_schema(schema: Mapping[str, Any]) -> str:
    """Return why this is no JSON Schema; ``""`` when it is one."""
    from jsonschema import SchemaError, validators

    try:
        validators.validator_for(dict(schema)).check_schema(dict(schema))
    except SchemaError as error:
        return str(error.message)[:LONGEST_LINE]
    return ""
