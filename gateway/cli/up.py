"""`paceline up`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.options import Config, Json, settings_from, told_plainly
from gateway.cli.output import UserError, print_json, styled, write

FIRST_ANSWERS_S = 0.7
"""How long the table waits for engines; those that answer later are served all the same."""
OWN_ENGINE = "builtin"
"""Name of the engine that serves ``--model``."""

if TYPE_CHECKING:
    from gateway.house import House
    from gateway.settings import Settings


def up(
    config: Config = None,
    host: Annotated[str, typer.Option(help="Listen here instead of the configured address.")] = "",
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Listen on this port; 0 picks a free one.")] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Serve this model, too: a GGUF file or a model folder, by the built-in engine."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Serve: find the engines or take the configured ones, print what there is, answer requests until stopped."""
    from gateway.exposure import require_safe_binding
    from gateway.file_limit import needed_files, raise_file_limit
    from gateway.logs import set_up_logging

    settings = _listening_on(settings_from(config), host, port)
    if model is not None:
        settings = _serving(settings, model)
    _refuse_strangers()
    with told_plainly():
        require_safe_binding(settings)
    set_up_logging(settings.log)
    from gateway.house import House
    from gateway.serve import run

    with told_plainly():
        house = House(settings)
    if not raise_file_limit(needed_files(settings.limits)):
        todo = "`paceline doctor` says more"
        write(f"{styled('warning:', 'yellow')} fewer open files are allowed than the limits may need; {todo}")

    async def announce(at_host: str, at_port: int) -> None:
        await house.wait_for_first_answers(FIRST_ANSWERS_S)
        _announce(house, at_host, at_port, as_json=as_json)

    if not run(house, announce):
        raise UserError(
            f"cannot serve on {settings.server.host}:{settings.server.port}; the log says why",
            fix="`paceline doctor` says who has the port; --port takes another.",
        )


def _listening_on(settings: Settings, host: str, port: int | None) -> Settings:
    given = {"host": host or None, "port": port}
    server = settings.server.model_copy(update={name: value for name, value in given.items() if value is not None})
    return settings.model_copy(update={"server": server})


def _serving(settings: Settings, model: Path) -> Settings:
    """Add the built-in engine with this model. Raises ``UserError`` when it cannot be started."""
    from adapters.launch import LaunchError, command
    from gateway.launching import launch_spec
    from gateway.settings import EngineSettings, LaunchKind, LaunchSettings

    if any(engine.name == OWN_ENGINE for engine in settings.engines):
        raise UserError(
            f"the configuration has an engine {OWN_ENGINE!r} already", fix="Rename it, or add the model there."
        )
    launch = LaunchSettings(engine=LaunchKind.BUILTIN, model=str(model.expanduser()))
    engine = EngineSettings(name=OWN_ENGINE, launch=launch)
    try:
        command(launch_spec(engine, launch, settings.data_dir), 0)
    except LaunchError as error:
        raise UserError(f"{model} cannot be served: {error}") from None
    discovery = settings.discovery.model_copy(update={"enabled": settings.discovers})
    return settings.model_copy(update={"engines": (*settings.engines, engine), "discovery": discovery})


def _refuse_strangers() -> None:
    from gateway.packages import strangers

    for name, where in strangers().items():
        fix = "Install Paceline into an environment of its own (`pipx install paceline`)."
        raise UserError(f"the package {name!r} is another distribution's: {where}", fix=fix)


def _announce(house: House, host: str, port: int, *, as_json: bool) -> None:
    from gateway.address import url_of
    from gateway.cli.fleet_table import found_table
    from gateway.report import fleet_report

    url = url_of(host, port)
    deployments = fleet_report(house.fleet)
    if as_json:
        print_json({"url": url, "config": _shown(house.settings.path), "deployments": deployments})
        return
    write(found_table(deployments) if deployments else "No engine answers yet; those that start later are taken in.")
    source = f" (configuration: {house.settings.path})" if house.settings.path else ""
    write(f"\nServing on {styled(f'{url}/v1', 'bold')}{source}. Ctrl+C stops.")


def _shown(path: Path | None) -> str | None:
    return str(path) if path else None
