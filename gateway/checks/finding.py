"""What a check found, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class Level(StrEnum):
    """How much a finding matters: ``fix`` has to be put right, ``warn`` should be."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    FIX = "fix"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `paceline doctor`. ``todo`` is empty where there is nothing to do."""

    check: str
    level: Level
    what: str
    todo: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return it for JSON."""
        return asdict(self)


def ok(check: str, what: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, what)


def note(check: str, what: str, todo: str = "") -> Finding:
    """Worth knowing."""
    return Finding(check, Level.NOTE, what, todo)


def warn(check: str, what: str, todo: str) -> Finding:
    """Works, but not well."""
    return Finding(check, Level.WARN, what, todo)


def fix(check: str, what: str, todo: str) -> Finding:
    """Does not work until it is put right."""
    return Finding(check, Level.FIX, what, todo)
