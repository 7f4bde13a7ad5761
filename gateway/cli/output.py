"""What commands print: plain text in columns, colour on a terminal that wants it, or JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

Row = Sequence[object]

_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34"}


class UserError(Exception):
    """Something that the user can put right; ``problems`` are further lines, or objects for ``--json``.

    ``status`` is the exit status: 1, or 2 for what was given wrongly to a command whose 1 is a verdict.
    """

    def __init__(
        self, message: str, *, fix: str = "", problems: Sequence[dict[str, str]] = (), status: int = 1
    ) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.problems = tuple(problems)
        self.status = status


def report(error: UserError, *, as_json: bool) -> None:
    """Tell a user's error: JSON goes to standard output, text to standard error."""
    if as_json:
        print_json({"error": {"message": error.message, "fix": error.fix, "problems": error.problems}})
        return
    write(f"{styled('error:', 'red', sys.stderr)} {error.message}", sys.stderr)
    for problem in error.problems:
        write(f"  {problem['where']} {problem['what']}\n      {problem['fix']}", sys.stderr)
    if error.fix:
        write(f"  {error.fix}", sys.stderr)


def write(text: str = "", stream: TextIO | None = None) -> None:
    """Write a line, to standard output unless told otherwise."""
    stream = stream or sys.stdout
    stream.write(text + "\n")
    stream.flush()


def write_file(path: Path, data: bytes, *, option: str) -> None:
    """Write a file in one step: a reader sees the old one or the new one. ``option`` is where its name was given."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UserError(f"{path} cannot be written: {error.strerror}", fix=f"Name another with {option}.") from None


def print_json(value: Any) -> None:
    """Write a value as indented JSON."""
    write(json.dumps(value, indent=2, ensure_ascii=False))


def styled(text: str, style: str, stream: TextIO | None = None) -> str:
    """Return ``text`` in a style where the stream is a terminal and colour is wanted (https://no-color.org)."""
    wanted = (stream or sys.stdout).isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"\x1b[{_COLOURS[style]}m{text}\x1b[0m" if wanted else text


def table(head: Sequence[str], rows: Sequence[Row], indent: str = "") -> str:
    """Return rows in columns that are as wide as they need to be; numbers stand to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(line[column]) for line in [list(head), *cells]) for column in range(len(head))]
    numeric = [any(_is_number(row[column]) for row in rows) for column in range(len(head))]

    def line(values: Sequence[str]) -> str:
        parts = (
            value.rjust(width) if right else value.ljust(width)
            for value, width, right in zip(values, widths, numeric, strict=True)
        )
        return indent + "  ".join(parts).rstrip()

    return "\n".join([styled(line(head), "bold"), *map(line, cells)])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"
    return str(value)
