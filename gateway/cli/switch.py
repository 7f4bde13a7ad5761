"""`paceline switch`"""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli.experiment import asked, gateway_at
from gateway.cli.options import Config, Json, Url
from gateway.cli.output import UserError, print_json, write


def switch(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The logical model.")],
    to: Annotated[str, typer.Option("--to", metavar="DEPLOYMENT", help="Who serves its bare name from now on.")] = "",
    ramp: Annotated[bool, typer.Option("--ramp", help="5, 25, 50 and 100 %, stopped if it is worse.")] = False,
    back: Annotated[bool, typer.Option("--back", help="Undo it.")] = False,
    config: Config = None,
    url: Url = "",
    as_json: Json = False,
) -> None:
    """Send all requests for a model's bare name to one deployment: no restart, no request lost.

    While that deployment cannot serve a request, another one does.
    """
    if bool(to) == back:
        raise UserError(
            "say either --to DEPLOYMENT or --back", fix=f"paceline switch {model} --to DEPLOYMENT", status=2
        )
    gateway = gateway_at(config, url)
    answer = asked(lambda: gateway.switch_back(model) if back else gateway.switch(model, to, ramp=ramp))
    if as_json:
        print_json(answer)
    elif back:
        write(f"{answer['model']} is routed as before.")
    else:
        who = ", ".join(answer["arms"][1]["deployments"])
        write(f"{answer['model']}: {answer['share']:.0%} of its requests go to {who}.")
        write(f"Undo it with: paceline switch {model} --back")
