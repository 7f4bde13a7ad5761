"""What a configuration file says, with the line of each value, so that an error can say where it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.settings_errors import Location


@dataclass(frozen=True, slots=True)
class Document:
    """What a file says: its values, and the line (from 1) on which each path begins."""

    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[Location, int] = field(default_factory=dict)
    path: Path | None = None

    def where(self, location: Location) -> str:
        """Return ``file:line`` of the innermost part of ``location`` that the file has; empty when it has none."""
        for length in range(len(location), 0, -1):
            if (line := self.lines.get(location[:length])) is not None:
                return f"{self.path}:{line}"
        return ""
