"""How experiments are shown: the list, and one with its arms, differences and verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.cli.output import Row, styled, table

_COLOURS = {"better": "green", "worse": "red", "refused": "yellow"}


def listed(experiments: Sequence[Mapping[str, Any]]) -> str:
    """Return the list."""
    if not experiments:
        return "No experiments. Begin one with: paceline experiment start NAME --model MODEL --arm a=… --arm b=…"
    rows: list[Row] = [
        (
            each["name"],
            each["model"],
            each["kind"],
            f"{each['share']:.0%}" if each["runs"] else "-",
            each["requests"],
            "runs" if each["runs"] else each["ended"],
        )
        for each in experiments
    ]
    return table(("NAME", "MODEL", "KIND", "SHARE", "REQUESTS", "STATE"), rows)


def reported(report: Mapping[str, Any]) -> str:
    """Return one experiment."""
    state = f"{report['share']:.0%} to the new" if report["runs"] else f"over: {report['ended']}"
    if report["runs"] and report["next_share"] is not None:
        state += f", next {report['next_share']:.0%}"
    parts = [f"{styled(report['name'], 'bold')} on {report['model']} ({report['kind']}), {state}", ""]
    arms: list[Row] = [
        (arm["name"], ", ".join(arm["deployments"]) or "whoever routing chooses", _weight(arm), arm["requests"])
        for arm in report["arms"]
    ]
    parts.append(table(("ARM", "DEPLOYMENTS", "WEIGHT", "REQUESTS"), arms))
    for compared in report["comparisons"]:
        verdict = compared["verdict"]
        colour = _COLOURS.get(verdict["outcome"], "bold")
        rows = [_row(metric) for metric in compared["metrics"]]
        if rows:
            head = ("METRIC", compared["against"], compared["arm"], "DIFFERENCE", "BETWEEN", "MORE REQUESTS")
            parts += ["", table(head, rows)]
        if report["kind"] != "switch":
            parts += ["", styled(verdict["text"], colour)]
        if compared["differ"]:
            parts.append(f"They differ in {'; '.join(compared['differ'])}.")
        if compared["guardrails"]:
            parts += [
                "",
                f"{compared['arm']} is stopped by itself (95 of 100 times) if it has",
                *_promises(compared["guardrails"]),
            ]
    parts += [_stop(arm) for arm in report["arms"] if arm["stop"] is not None]
    parts += [f"{styled('warning:', 'yellow')} {warning}" for warning in report["warnings"]]
    return "\n".join(parts)


def _weight(arm: Mapping[str, Any]) -> str:
    return "stopped" if arm["stopped"] else f"{arm['weight']:.0%}"


def _stop(arm: Mapping[str, Any]) -> str:
    stop = arm["stop"]
    told = f"{arm['name']} was stopped by its guardrail on {stop['guardrail']} after {stop['requests']:,} requests: "
    return styled(told + stop["text"], "red")


def _promises(guardrails: Sequence[Mapping[str, Any]]) -> list[str]:
    """Within how many requests, a line for each guardrail."""
    lines: dict[str, list[str]] = {}
    for each in guardrails:
        worse = (
            f"{each['worse']:.1f} times" if each["guardrail"] == "ttft" else f"{each['worse'] * 100:.0f} points more"
        )
        within = "not to be told yet" if each["within"] is None else f"within {each['within']:,} requests"
        lines.setdefault(each["guardrail"], []).append(f"{worse}: {within}")
    return [f"  {name:<8}{'; '.join(told)}" for name, told in lines.items()]


def _row(metric: Mapping[str, Any]) -> Row:
    name = f"{metric['metric']} {metric['unit']}".strip()
    first, second = (None if value is None else _value(metric, value) for value in metric["values"])
    between = "-" if metric["low"] is None else f"{_change(metric, metric['low'])} to {_change(metric, metric['high'])}"
    change = "-" if metric["difference"] is None else _change(metric, metric["difference"])
    return name, first, second, change, between, _more(metric["more"])


def _value(metric: Mapping[str, Any], value: float) -> str:
    return f"{value:.1%}" if metric["scale"] == "share" else f"{value:.3g}"


def _change(metric: Mapping[str, Any], value: float) -> str:
    if metric["scale"] == "mean":
        return f"{value:+.2f}"
    return f"{value * 100:+.1f}{' %' if metric['scale'] == 'ratio' else ' points'}"


def _more(more: int | None) -> str:
    return "-" if more is None else "enough" if more == 0 else f"{more:,}"
