"""`paceline top`"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.options import Config, Json, Url, settings_from
from gateway.cli.output import UserError, print_json

if TYPE_CHECKING:
    from gateway.cli.running import RunningGateway

LONGEST_S = 3600.0


def top(
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end; so does a pipe.")] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.2, max=LONGEST_S, metavar="SECONDS", help="Time between two frames.")
    ] = 1.0,
    config: Config = None,
    url: Url = "",
    as_json: Json = False,
) -> None:
    """Watch a running Paceline: deployments, queue, time to first token, tokens a second, cache, last decisions.

    Speeds are those of the last minute. q or Ctrl+C ends it.
    """
    from gateway.cli.running import RunningGateway

    gateway = RunningGateway.at(url, settings_from(config))
    if as_json:
        print_json(_now(gateway))
    elif once or not sys.stdout.isatty():
        from rich.console import Console

        from gateway.cli.top_frame import frame

        Console().print(frame(_now(gateway), gateway.url))
    else:
        _watch(gateway, every)


def _now(gateway: RunningGateway) -> dict[str, Any]:
    from gateway.cli.running import NotRunning

    try:
        return gateway.now()
    except NotRunning as nobody:
        raise UserError(str(nobody), fix="Start it with `paceline up`, or say where it is with --url.") from None


def _watch(gateway: RunningGateway, every_s: float) -> None:
    """Show frame after frame until q or Ctrl+C; a gateway that is gone for a while is waited for."""
    from rich.live import Live

    from gateway.cli.keyboard import single_keys
    from gateway.cli.running import NotRunning
    from gateway.cli.top_frame import frame, gone

    shown = frame(_now(gateway), gateway.url)
    try:
        with single_keys() as keys, Live(shown, screen=True, auto_refresh=False) as live:
            while not keys.quit_pressed(every_s):
                try:
                    shown = frame(gateway.now(), gateway.url)
                except NotRunning as nobody:
                    shown = gone(str(nobody))
                live.update(shown, refresh=True)
    except KeyboardInterrupt:
        return
