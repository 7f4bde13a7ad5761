"""`paceline models`"""

from __future__ import annotations

from gateway.cli.options import Config, Json, Url, settings_from, told_plainly
from gateway.cli.output import UserError, print_json, styled, write


def models(config: Config = None, url: Url = "", as_json: Json = False) -> None:
    """List the models and their deployments, with state and last measured speeds.

    A running Paceline is asked; without one, the engines themselves, and what is on record.
    """
    from gateway.cli.fleet_table import speed_tables
    from gateway.cli.running import NotRunning, RunningGateway

    settings = settings_from(config)
    gateway = RunningGateway.at(url, settings)
    try:
        fleet, source = gateway.fleet(), gateway.url
    except NotRunning as nobody:
        if url:
            raise UserError(str(nobody), fix="Start it with `paceline up`, or leave out --url.") from None
        from gateway.offline import look_around

        with told_plainly():
            fleet, source = look_around(settings), "engines"
    if as_json:
        print_json({"source": source, **fleet})
        return
    if not fleet["deployments"]:
        raise UserError("no engine serves a model", fix="`paceline doctor` says what it looked for.")
    write(speed_tables(fleet["deployments"]))
    if source == "engines":
        write(
            styled("\nNo Paceline is running: this is what the engines themselves say, with speeds on record.", "dim")
        )
