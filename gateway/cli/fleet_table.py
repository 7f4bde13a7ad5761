"""Deployments as tables for people; the entries are those of `GET /admin/fleet`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.cli.output import Row, table

Entry = Mapping[str, Any]

FOUND = ("ENGINE", "VERSION", "MODEL", "PRECISION", "CONTEXT", "SLOTS", "STATE", "DEPLOYMENT")
SPEEDS = (
    *("DEPLOYMENT", "ENGINE", "PRECISION", "QUALITY", "CONTEXT", "SLOTS", "STATE"),
    *("PREFILL TOK/S", "DECODE TOK/S", "IN INTERVAL"),
)

NO_MODEL = "(no model yet)"
"""Where engines stand that have not said what they serve."""


def found_table(deployments: Iterable[Entry]) -> str:
    """Return what was found: one deployment a line."""
    rows: list[Row] = [
        (
            _engine(entry),
            entry.get("engine_version"),
            entry.get("model"),
            precision(entry),
            entry.get("context"),
            entry.get("slots"),
            _state(entry),
            entry.get("id"),
        )
        for entry in deployments
    ]
    return table(FOUND, rows)


def speed_tables(deployments: Iterable[Entry]) -> str:
    """Return one table per logical model, with the last measured speeds."""
    by_model: dict[str, list[Row]] = {}
    for entry in deployments:
        measured = entry.get("measured") or {}
        by_model.setdefault(entry.get("model") or NO_MODEL, []).append(
            (
                entry.get("id"),
                _engine(entry, with_version=True),
                precision(entry),
                entry.get("quality"),
                entry.get("context"),
                entry.get("slots"),
                _state(entry),
                prefill_speeds(measured),
                measured.get("decode_tokens_per_s"),
                held(entry),
            )
        )
    return "\n\n".join(f"{name}\n{table(SPEEDS, rows, indent='  ')}" for name, rows in sorted(by_model.items()))


def precision(entry: Entry) -> str:
    """Return the precision with its scheme: ``int4 Q4_K_M``."""
    return f"{entry.get('precision') or ''} {entry.get('scheme') or ''}".strip()


def prefill_speeds(measured: Mapping[str, Any]) -> str:
    """Return prefill speeds by prompt length: ``344 at 98, 249 at 909``."""
    speeds = measured.get("prefill_tokens_per_s") or {}
    return ", ".join(f"{speed:.0f} at {length}" for length, speed in sorted(speeds.items(), key=lambda i: int(i[0])))


def held(entry: Entry) -> str:
    """Return how many of the last answers came within their 80 % interval: ``81% of 120``; "" before there is any."""
    predictions = entry.get("predictions") or {}
    share = predictions.get("held")
    return "" if share is None else f"{share:.0%} of {predictions['outcomes']}"


def _engine(entry: Entry, *, with_version: bool = False) -> str:
    label = str(entry.get("engine_label") or entry.get("engine") or "")
    return f"{label} {entry.get('engine_version') or ''}".strip() if with_version else label


def _state(entry: Entry) -> str:
    words = [str(entry.get("state"))]
    if entry.get("stable"):
        words.append("stable")
    if (entry.get("predictions") or {}).get("outdated"):
        words.append("to be measured again")
    state, note = ", ".join(words), entry.get("note")
    return f"{state}: {note}" if note else state
