"""`paceline experiment`"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.experiment_table import listed, reported
from gateway.cli.lazy import CONTEXT
from gateway.cli.options import Config, Json, Url, settings_from
from gateway.cli.output import UserError, print_json, write

if TYPE_CHECKING:
    from gateway.cli.running import RunningGateway

experiment = typer.Typer(
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    epilog="Example: paceline experiment start engines --model qwen3-8b --arm a=llamacpp --arm b=vllm",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The experiment.")]


@experiment.callback()
def overview(context: typer.Context, config: Config = None, url: Url = "", as_json: Json = False) -> None:
    """Compare deployments of a model on its own requests: start, ramp, report, stop."""
    if context.invoked_subcommand is None:
        list_(config, url, as_json)


@experiment.command("list", epilog="Example: paceline experiment list")
def list_(config: Config = None, url: Url = "", as_json: Json = False) -> None:
    """List the experiments and switches of a running Paceline."""
    answer = asked(gateway_at(config, url).experiments)
    if as_json:
        print_json(answer)
    else:
        write(listed(answer["experiments"]))


@experiment.command(epilog="Example: paceline experiment start engines --model qwen3-8b --arm a=llamacpp --arm b=vllm")
def start(
    name: Name,
    model: Annotated[str, typer.Option("--model", "-m", help="The logical model.")],
    arm: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=WHO[,WHO…]",
            help="An arm: deployments' ids, or what may stand after a model's @. The first is compared with.",
        ),
    ],
    ramp: Annotated[str, typer.Option(metavar="PERCENT,…", help="Shares of the new arms, such as 5,25,50.")] = "50",
    advance_after: Annotated[
        int | None, typer.Option(min=1, help="Take the next share after so many requests of the new arms.")
    ] = None,
    sticky: Annotated[str, typer.Option(help="Kept to one arm: request, key, user or header.")] = "request",
    header: Annotated[str, typer.Option(help="The header, for --sticky header.")] = "",
    metric: Annotated[str, typer.Option(help="What the verdict is about.")] = "total",
    smallest: Annotated[float, typer.Option(metavar="PERCENT", help="Smallest difference that matters.")] = 10.0,
    shadow: Annotated[bool, typer.Option("--shadow", help="Send copies to the second arm; nobody sees it.")] = False,
    config: Config = None,
    url: Url = "",
    as_json: Json = False,
) -> None:
    """Begin an experiment. Only requests for the bare name of the model take part."""
    what: dict[str, Any] = {
        "name": name,
        "model": model,
        "arms": [_arm(each) for each in arm],
        "shadow": shadow,
        "ramp": _shares(ramp),
        "advance_after": advance_after,
        "sticky": sticky,
        "header": header,
        "metric": metric,
        "smallest": smallest / 100,
    }
    gateway = gateway_at(config, url)
    show(asked(lambda: gateway.start_experiment(what)), as_json=as_json)


@experiment.command(epilog="Example: paceline experiment ramp engines --to 25")
def ramp(
    name: Name,
    to: Annotated[float | None, typer.Option(metavar="PERCENT", help="Left out: the next share of its ramp.")] = None,
    config: Config = None,
    url: Url = "",
    as_json: Json = False,
) -> None:
    """Give the new arms a bigger or smaller share."""
    gateway = gateway_at(config, url)
    show(asked(lambda: gateway.ramp_experiment(name, None if to is None else to / 100)), as_json=as_json)


@experiment.command(epilog="Example: paceline experiment stop engines")
def stop(name: Name, config: Config = None, url: Url = "", as_json: Json = False) -> None:
    """End an experiment: requests go where they would without it. Its report stays."""
    gateway = gateway_at(config, url)
    show(asked(lambda: gateway.stop_experiment(name)), as_json=as_json)


@experiment.command(epilog="Example: paceline experiment report engines")
def report(name: Name, config: Config = None, url: Url = "", as_json: Json = False) -> None:
    """Show the differences, how sure they are, and the verdict, or why there is none. Look as often as you like."""
    gateway = gateway_at(config, url)
    show(asked(lambda: gateway.experiment(name)), as_json=as_json)


def gateway_at(config: Config, url: str) -> RunningGateway:
    """Return the running Paceline."""
    from gateway.cli.running import RunningGateway

    return RunningGateway.at(url, settings_from(config))


def asked(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return its answer. Raises ``UserError`` also when nobody is there."""
    from gateway.cli.running import NotRunning

    try:
        return ask()
    except NotRunning as nobody:
        raise UserError(str(nobody), fix="Start it with `paceline up`, or say where it is with --url.") from None


def show(answer: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a report."""
    if as_json:
        print_json(answer)
    else:
        write(reported(answer))


def _arm(text: str) -> dict[str, Any]:
    name, equals, who = text.partition("=")
    deployments = [each.strip() for each in who.split(",") if each.strip()]
    if not equals or not name or not deployments:
        raise typer.BadParameter(f"{text!r} is no arm; write NAME=WHO, such as b=vllm", param_hint="--arm")
    return {"name": name, "deployments": deployments}


def _shares(text: str) -> list[float]:
    try:
        return [float(each.strip().rstrip("%")) / 100 for each in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} are no percentages, such as 5,25,50", param_hint="--ramp") from None
