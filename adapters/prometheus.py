"""Gauges out of Prometheus' text format: as much of it as engines use."""

from __future__ import annotations

import math
import re
from typing import Final

_LINE: Final = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{[^}]*\})?\s+(\S+)", re.M)
_LABEL: Final = r'^{name}\{{(?:[^}}]*,)?{label}="([^"]*)"'


class Gauges:
    """Values by name, one for each combination of labels."""

    def __init__(self, values: dict[str, list[float]]) -> None:
        self._values = values

    def sum(self, *names: str) -> float | None:
        """The sum over all labels of the first name that is there; ``None`` when none is."""
        values = self._first(names)
        return sum(values) if values else None

    def total(self, *names: str) -> int | None:
        """The same as a whole number."""
        total = self.sum(*names)
        return None if total is None else round(total)

    def highest(self, *names: str) -> float | None:
        """The highest over all labels of the first name that is there."""
        values = self._first(names)
        return max(values) if values else None

    def _first(self, names: tuple[str, ...]) -> list[float]:
        return next((self._values[name] for name in names if name in self._values), [])


def read_gauges(text: bytes) -> Gauges:
    """Read an exposition. Lines whose value is no finite number, or is below 0, are left out."""
    values: dict[str, list[float]] = {}
    for name, value in _LINE.findall(text.decode(errors="replace")):
        try:
            number = float(value)
        except ValueError:
            continue
        if 0 <= number < math.inf:
            values.setdefault(name, []).append(number)
    return Gauges(values)


def read_label(text: bytes, name: str, label: str) -> str | None:
    """A label of the first sample of ``name``: where an engine tells settings so. ``None`` when it has none."""
    pattern = _LABEL.format(name=re.escape(name), label=re.escape(label))
    found = re.search(pattern, text.decode(errors="replace"), re.M)
    return found[1] if found else None
