"""`paceline init`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.options import Json, settings_from, told_plainly
from gateway.cli.output import UserError, print_json, write, write_file


def init(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File; - is standard output.")] = Path(
        "paceline.yaml"
    ),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    as_json: Json = False,
) -> None:
    """Write a commented configuration from the engines that run on this machine."""
    to_stdout = str(output) == "-"
    if not to_stdout and output.exists() and not force:
        raise UserError(f"{output} exists", fix="--force overwrites it; --output names another.")
    from gateway.draft import draft, running_engines
    from gateway.settings import Settings

    with told_plainly():
        engines = running_engines(Settings())
    text = draft(engines)
    if to_stdout:
        write(text.rstrip("\n"))
        return
    write_file(output, text.encode(), option="--output")
    settings_from(output)
    names = [engine.name for engine in engines]
    if as_json:
        print_json({"file": str(output), "engines": names})
    else:
        found = f"with {', '.join(names)}" if names else "without an engine: none was found"
        write(f"{output} is written, {found}.\nNext: paceline up --config {output}")
