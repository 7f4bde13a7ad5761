"""A group of commands of which only the one that runs is imported."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, cast

import typer
from typer.core import TyperGroup

CONTEXT = {"help_option_names": ["-h", "--help"]}


class Help(NamedTuple):
    """What the list of commands says of one, and how it is typed."""

    summary: str
    example: str


class LazyGroup(TyperGroup):
    """The commands in ``helps``: NAME is the function, or the Typer app, NAME in `gateway/cli/NAME.py`."""

    helps: ClassVar[Mapping[str, Help]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Typer looks here only for near names, when one is typed wrongly.
        self.commands = cast(Any, dict.fromkeys(self.helps))

    def list_commands(self, ctx: object) -> list[str]:
        """Return the names in the order in which help shows them."""
        return list(self.helps)

    def get_command(self, ctx: object, cmd_name: str) -> Any:
        """Import a command; None when there is none of that name."""
        if cmd_name not in self.helps:
            return None
        name = cmd_name.replace("-", "_")
        command = getattr(import_module(f"gateway.cli.{name}"), name)
        if isinstance(command, typer.Typer):
            return typer.main.get_command(command)
        alone = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=CONTEXT)
        summary, example = self.helps[cmd_name]
        alone.command(cmd_name, short_help=summary, epilog=f"Example: {example}")(command)
        return typer.main.get_command(alone)

    def format_commands(self, ctx: object, formatter: Any) -> None:
        """Write the list of commands into the help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, shown.summary) for name, shown in self.helps.items()])
