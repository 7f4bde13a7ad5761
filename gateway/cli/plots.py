"""Pictures of records, for the options that name a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.output import UserError, write_file

if TYPE_CHECKING:
    from measure.records import Record

_OPTION = "--plot"


def drawable(path: Path) -> Path:
    """Return ``path``. Raises ``UserError`` unless it names a picture that can be drawn here."""
    from measure.extras import MissingExtra, optional
    from measure.plot import Picture

    if path.suffix.removeprefix(".").lower() not in list(Picture):
        raise UserError(f"{path} is no picture", fix=f"{_OPTION} takes FILE.svg or FILE.png.")
    try:
        optional("matplotlib", extra="plots", purpose="a picture")
    except MissingExtra as missing:
        raise UserError(missing.message, fix=missing.fix) from None
    return path


def plot_records(records: list[Record], path: Path) -> None:
    """Write the picture that the file's name asks for."""
    from measure.plot import NothingToDraw, Picture, draw

    try:
        data = draw(records, Picture(path.suffix.removeprefix(".").lower()))
    except NothingToDraw as error:
        raise UserError(str(error)) from None
    write_file(path, data, option=_OPTION)
