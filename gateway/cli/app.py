"""The commands, each in its own file."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli.doctor import doctor
from gateway.cli.explain import explain
from gateway.cli.init import init
from gateway.cli.key import key
from gateway.cli.models import models
from gateway.cli.up import up
from gateway.cli.version import version

app = typer.Typer(
    name="paceline",
    epilog="Begin with: paceline up",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for _command, _summary, _example in (
    (up, "Serve on one address what all engines offer.", "paceline up --config paceline.yaml"),
    (init, "Write a configuration from what runs here.", "paceline init --output paceline.yaml"),
    (doctor, "Check everything, and say what to do.", "paceline doctor"),
    (models, "List models, deployments and their speeds.", "paceline models --json"),
    (explain, "Say where a prompt would go, and why.", 'paceline explain "Why is the sky blue?" --model qwen3-8b'),
    (key, "Make a key for a client.", "paceline key --name alice"),
    (version, "Print the versions.", "paceline version"),
):
    app.command(short_help=_summary, epilog=f"Example: {_example}")(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def paceline(
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """One endpoint in front of your engines; each request goes to the one that finishes it first."""
