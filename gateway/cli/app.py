"""The commands, each in its own file, imported when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import typer

from gateway.cli.lazy import CONTEXT, Help, LazyGroup


class Commands(LazyGroup):
    """To add a command: an entry here, and a function (or a Typer app) NAME in `gateway/cli/NAME.py`."""

    helps: ClassVar[Mapping[str, Help]] = {
        "up": Help("Serve on one address what all engines offer.", "paceline up --config paceline.yaml"),
        "init": Help("Write a configuration from what runs here.", "paceline init --output paceline.yaml"),
        "doctor": Help("Check everything, and say what to do.", "paceline doctor"),
        "models": Help("List models, deployments and their speeds.", "paceline models --json"),
        "explain": Help(
            "Say where a prompt would go, and why.", 'paceline explain "Why is the sky blue?" --model qwen3-8b'
        ),
        "bench": Help("Measure speeds on this machine.", "paceline bench smollm2 --prompt-tokens 64,256"),
        "records": Help("List, show, export and import measurements.", "paceline records --format markdown"),
        "compare": Help(
            "Compare two selections of measurements.",
            "paceline compare engine=llamacpp,precision=int8 engine=llamacpp,precision=int4 --plot int8-int4.svg",
        ),
        "quality": Help(
            "Test quantised deployments against the best precision.", "paceline quality qwen3-8b --report report/"
        ),
        "soak": Help(
            "Make many requests in a row, and say whether an engine is stable.", "paceline soak qwen3-8b@vllm"
        ),
        "cache": Help("Show, clear, inspect and warm the cache.", "paceline cache clear --model qwen3-8b"),
        "experiment": Help(
            "Compare deployments on a model's own requests.",
            "paceline experiment start engines --model qwen3-8b --arm a=llamacpp --arm b=vllm",
        ),
        "switch": Help("Send a model's requests to one deployment.", "paceline switch qwen3-8b --to vllm --ramp"),
        "why": Help("Say why a request was slow, and what to do.", "paceline why 4f1c9a0b00000017"),
        "top": Help("Watch deployments, queue, speeds and decisions as they are now.", "paceline top --once"),
        "key": Help("Make a key for a client.", "paceline key --name alice"),
        "version": Help("Print the versions.", "paceline version"),
    }


app = typer.Typer(
    name="paceline",
    cls=Commands,
    epilog="Begin with: paceline up",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from gateway.cli.version import version

        version()
        raise typer.Exit


@app.callback()
def paceline(
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """One endpoint in front of your engines; each request goes to the one that finishes it first."""
