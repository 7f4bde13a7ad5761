"""`paceline explain`"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gateway.cli.fleet_table import precision
from gateway.cli.options import Config, Json, Url, settings_from, told_plainly
from gateway.cli.output import Row, UserError, print_json, styled, table, write


def explain(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.", metavar="PROMPT")],
    model: Annotated[str, typer.Option("--model", "-m", help="NAME or NAME@SELECTOR, as a client would ask.")],
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer, in tokens.")] = None,
    objective: Annotated[str | None, typer.Option(help="latency, ttft or throughput.")] = None,
    stream: Annotated[bool, typer.Option("--stream", help="As a streamed request.")] = False,
    config: Config = None,
    url: Url = "",
    as_json: Json = False,
) -> None:
    """Say which deployment would serve a prompt, and why the others would not. Sends nothing to any engine."""
    from gateway.cli.running import NotRunning, RunningGateway

    settings = settings_from(config)
    question: dict[str, Any] = {
        "model": model,
        "prompt": sys.stdin.read() if prompt == "-" else prompt,
        "max_tokens": max_tokens,
        "objective": _objective(objective),
        "stream": stream,
    }
    gateway = RunningGateway.at(url, settings)
    try:
        answer = gateway.explain(question)
    except NotRunning as nobody:
        if url:
            raise UserError(str(nobody), fix="Start it with `paceline up`, or leave out --url.") from None
        from gateway.offline import explain_offline

        with told_plainly():
            answer = explain_offline(settings, question)
    if as_json:
        print_json(answer)
    else:
        write(_told(answer))
    if not answer.get("chosen"):
        raise typer.Exit(1)


def _objective(name: str | None) -> str | None:
    from policies.types import Objective

    if name is not None and name not in list(Objective):
        raise typer.BadParameter(f"{name!r} is none of {', '.join(Objective)}", param_hint="--objective")
    return name


def _told(answer: Mapping[str, Any]) -> str:
    chosen = answer.get("chosen")
    head = f"{styled(str(chosen), 'bold')}: {answer['reason']}" if chosen else f"nobody: {answer.get('reason')}"
    parts = [head, f"rule {answer.get('rule')}, prompt of about {answer.get('prompt_tokens')} tokens"]
    if candidates := answer.get("candidates"):
        rows: list[Row] = [
            (entry["deployment"], entry.get("ttft_s"), entry.get("total_s"), _interval(entry), entry["reason"])
            for entry in candidates
        ]
        parts.append("\n" + table(("DEPLOYMENT", "TTFT S", "TOTAL S", "4 OF 5 TIMES", "WHY"), rows))
    if rejected := answer.get("rejected"):
        rows = [(entry["deployment"], entry["code"], entry["reason"]) for entry in rejected]
        parts.append("\n" + table(("NOT", "CODE", "WHY"), rows))
    if precisions := answer.get("precisions"):
        rows = [(entry["deployment"], precision(entry), entry["who"]) for entry in precisions]
        parts.append("\n" + table(("PRECISION OF", "RUNS", "SERVES"), rows))
    return "\n".join(parts)


def _interval(candidate: Mapping[str, Any]) -> str:
    """The total times between which four of five outcomes should lie."""
    if candidate.get("total_s") is None:
        return ""
    return f"{_seconds(candidate['total_low_s'])} to {_seconds(candidate['total_high_s'])}"


def _seconds(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"
