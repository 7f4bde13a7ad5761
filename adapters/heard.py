"""What an engine answers, read without trust: any place of its JSON may hold anything, and be nested any deep."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for bytes that are not the JSON asked for; the last for what is nested too deep."""

_EXACT: Final = 2**53
"""Beyond this numbers in JSON are not exact, and no count is so high."""


def object_in(value: object) -> dict[str, Any]:
    """The JSON object, ``{}`` for anything else."""
    return value if isinstance(value, dict) else {}


def text_in(value: object) -> str:
    """The text, "" for anything else."""
    return value if isinstance(value, str) else ""


def count_in(value: object) -> int | None:
    """The count, 0 or more; ``None`` for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _EXACT else None


def size_in(value: object) -> int | None:
    """The size, 1 or more; ``None`` for anything else."""
    return count_in(value) or None


def duration_in(value: object) -> float | None:
    """The duration, 0 or more in whatever unit; ``None`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < math.inf else None


def cards_in(listed: dict[str, Any]) -> list[dict[str, Any]]:
    """The cards of an answer to ``/v1/models`` that have a name, each with its ``id``."""
    data = listed.get("data")
    cards = data if isinstance(data, list) else []
    return [card for card in cards if isinstance(card, dict) and text_in(card.get("id"))]
