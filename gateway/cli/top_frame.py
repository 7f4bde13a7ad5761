"""One frame of `paceline top`, from what `GET /admin/now` says."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_STATES = {"up": "green", "loading": "yellow", "down": "red"}
_SYMPTOMS = {"none": "green", "slow": "yellow"}


def frame(now: Mapping[str, Any], url: str) -> RenderableType:
    """Return the whole picture."""
    return Group(_head(now, url), Text(), _deployments(now), Text(), _decisions(now))


def gone(why: str) -> RenderableType:
    """Return what is shown while nobody answers."""
    return Text.assemble(("Paceline is away: ", "red"), why)


def _head(now: Mapping[str, Any], url: str) -> Text:
    places = f"{now['running']} of {now['places']} places taken, {now['waiting']} waiting"
    head = Text.assemble(("Paceline ", "bold"), url, f"   {places}   cache: {_cache(now['cache'])}")
    head.append(f"   {time.strftime('%H:%M:%S', time.localtime(now['at']))}", "dim")
    return head


def _cache(counts: Mapping[str, Any] | None) -> str:
    if counts is None:
        return "off"
    asked = counts["hits"] + counts["misses"] + counts["coalesced"]
    return f"{counts['hits']} hits of {asked}" + (f" ({100 * counts['hits'] / asked:.0f} %)" if asked else "")


def _table(*columns: str, numbers: frozenset[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", no_wrap=column in numbers)
    return table


def _deployments(now: Mapping[str, Any]) -> Table:
    numbers = frozenset({"IN FLIGHT", "NO TOKEN YET", "TTFT", "TOK/S EACH", "TOK/S ALL", "DONE", "FAILED"})
    table = _table(
        *("DEPLOYMENT", "ENGINE", "PRECISION", "STATE", "IN FLIGHT", "NO TOKEN YET"),
        *("TTFT", "TOK/S EACH", "TOK/S ALL", "DONE", "FAILED"),
        numbers=numbers,
    )
    for each in now["deployments"]:
        slots = f"/{each['slots']}" if each["slots"] else ""
        table.add_row(
            Text(each["id"]),
            Text(each["engine"]),
            each["precision"],
            Text(each["state"], _STATES.get(each["state"], "yellow")),
            f"{each['inflight']}{slots}",
            str(each["until_first_token"]),
            _seconds(each["ttft_s"]),
            _speed(each["decode_tokens_per_s"]),
            _speed(each["output_tokens_per_s"]),
            str(each["requests"]),
            Text(str(each["failed"]), "red" if each["failed"] else ""),
        )
    return table


def _decisions(now: Mapping[str, Any]) -> Table:
    table = _table(
        *("AT", "REQUEST", "TO", "TOOK", "PREDICTED", "", "WHY THERE"), numbers=frozenset({"TOOK", "PREDICTED"})
    )
    for each in now["last"]:
        slow = each["symptom"] != "none"
        table.add_row(
            time.strftime("%H:%M:%S", time.localtime(each["at"])),
            Text(each["request_id"][:20]),
            Text(each["deployment"] or "nobody"),
            _seconds(each["total_s"]),
            _seconds(each["predicted_total_s"]),
            Text(each["headline"] if slow else "", _SYMPTOMS.get(each["symptom"], "red")),
            Text(each["reason"] or each["error"], overflow="ellipsis"),
        )
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def _speed(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 10 else f"{value:.1f}"
