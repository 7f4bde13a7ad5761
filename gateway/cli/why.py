"""`paceline why`"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.options import Config, Json, Url, settings_from
from gateway.cli.output import Row, UserError, print_json, styled, table, write

if TYPE_CHECKING:
    from gateway.settings import Settings

_WIDTH = 100
_BAR = 32
_NAMES = {
    "read": "reading it",
    "wait": "gateway queue",
    "route": "auth, routing",
    "cache": "cache",
    "retry": "failed attempts",
    "connect": "connecting",
    "queue": "engine queue",
    "load": "model load",
    "prefill": "prefill",
    "decode": "decode",
    "engine": "in the engine",
    "client": "client reading",
    "other": "gateway, other",
}
_STYLES = {"none": "green", "slow": "yellow", "error": "red", "stuck": "red", "no output": "red"}


def why(
    request_id: Annotated[str, typer.Argument(metavar="REQUEST_ID", help="What the header x-request-id said.")],
    config: Config = None,
    url: Url = "",
    as_json: Json = False,
) -> None:
    """Say why a request was slow, or what it waits for: the first step that explains it, its evidence, what to do.

    A running Paceline is asked, also about requests that still run; without one, what is kept in its data folder.

    Exit status: 0 told, 1 the request is unknown, 2 typed wrongly.
    """
    from gateway.cli.running import NotRunning, RunningGateway

    settings = settings_from(config)
    try:
        told = RunningGateway.at(url, settings).request(request_id)
    except NotRunning as nobody:
        if url:
            raise UserError(str(nobody), fix="Start it with `paceline up`, or leave out --url.") from None
        told = _kept(settings, request_id)
    if as_json:
        print_json(told)
    else:
        write(_told(told))


def _kept(settings: Settings, request_id: str) -> dict[str, Any]:
    """Return what the last Paceline here has kept of a request."""
    from gateway.requests.report import request_report
    from gateway.requests.store import FILE, RequestStore
    from measure.database import StoreError

    path = settings.data_dir / FILE
    case = None
    if path.is_file():
        try:
            store = RequestStore(path, settings.requests.keep)
            case = store.find(request_id)
            store.close()
        except StoreError as error:
            raise UserError(f"{path} cannot be read: {error}") from None
    if case is None:
        fix = "Start it with `paceline up`, or say where it is with --url: it keeps the last requests."
        raise UserError(f"no Paceline is running here, and none has kept a request {request_id!r}", fix=fix)
    return request_report(case)


def _told(request: Mapping[str, Any]) -> str:
    answer = request["why"]
    symptom, step = str(answer["symptom"]), answer["step"]
    head = "not slow" if symptom == "none" else symptom
    where = f" (step {step}: {answer['looked'][-1]['name']})" if step else ""
    parts = [
        f"{styled(head, _STYLES.get(symptom, 'bold'))}: {styled(answer['headline'], 'bold')}{where}",
        styled(_who(request), "dim"),
        "\n" + fill(answer["text"], _WIDTH),
        fill(f"What to do: {answer['advice']}", _WIDTH),
    ]
    if request["waterfall"]:
        parts.append("\n" + _waterfall(request["waterfall"]))
    if answer["evidence"]:
        rows: list[Row] = [(each["what"], _number(each), _expected(each)) for each in answer["evidence"]]
        parts.append("\n" + table(("EVIDENCE", "SEEN", "EXPECTED"), rows))
    rows = [(f"{each['step']}", each["name"], each["found"]) for each in answer["looked"]]
    parts.append("\n" + table(("STEP", "LOOKED AT", "FOUND"), rows))
    return "\n".join(parts)


def _who(request: Mapping[str, Any]) -> str:
    words = [request["request_id"], request["operation"], request["model"], request["ended"]]
    if request["deployment"]:
        words.append(f"by {request['deployment']}")
    if request["cache"] != "off":
        words.append(f"cache {request['cache']}")
    return ", ".join(word for word in words if word)


def _waterfall(stages: Sequence[Mapping[str, Any]]) -> str:
    """Return each stage with a bar at the time when it passed."""
    begun = min(each["begun_s"] for each in stages)
    whole = max(each["begun_s"] + each["took_s"] for each in stages) - begun or 1.0
    rows: list[Row] = []
    for each in stages:
        before = round(_BAR * (each["begun_s"] - begun) / whole)
        long = max(1 if each["took_s"] else 0, round(_BAR * each["took_s"] / whole))
        name = f"{each['stage']} (outside)" if each["outside"] else _NAMES.get(each["stage"], each["stage"])
        predicted = each["predicted_s"]
        bar = "·" * before + "█" * min(long, _BAR - before)
        rows.append((name, f"{each['took_s']:.3f}", "" if predicted is None else f"{predicted:.3f}", bar))
    return table(("STAGE", "TOOK S", "PREDICTED S", ""), rows)


def _number(evidence: Mapping[str, Any]) -> str:
    return f"{_plain(evidence['value'])} {evidence['unit']}".strip()


def _expected(evidence: Mapping[str, Any]) -> str:
    return "" if evidence["expected"] is None else _plain(evidence["expected"])


def _plain(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.3f}".rstrip("0")
