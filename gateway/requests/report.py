"""One request as an operator is told of it: in a line, or with its stages and the diagnosis."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from policies.diagnosis.case import Case
from policies.diagnosis.diagnose import diagnose

_SUMMED_UP = (
    *("request_id", "model", "operation", "caller", "ended", "status", "error", "cache", "deployment", "engine"),
    *("precision", "reason", "streamed", "total_s", "ttft_s", "prompt_tokens", "cached_tokens", "output_tokens"),
)


def request_summary(case: Case) -> dict[str, Any]:
    """Return a request in a line of a list."""
    why = diagnose(case)
    return {
        "at": round(case.at, 3),
        **{name: getattr(case, name) for name in _SUMMED_UP},
        "attempts": len(case.tries),
        "predicted_total_s": None if case.expected is None else round(case.expected.total_s, 4),
        "symptom": why.symptom,
        "cause": why.cause,
        "headline": why.headline,
    }


def request_report(case: Case) -> dict[str, Any]:
    """Return all that is known of a request, its stages one after the other, and the diagnosis."""
    why = diagnose(case)
    return {**asdict(case), "waterfall": _waterfall(case), "why": {**asdict(why), "headline": why.headline}}


def _waterfall(case: Case) -> list[dict[str, Any]]:
    """Each stage that took time or was predicted to: when it began, how long it took, what was predicted.

    Those outside come first, at negative times.
    """
    expected = {} if case.expected is None else asdict(case.expected)
    rows: list[dict[str, Any]] = []
    begun_s = -case.outside_s
    for name, seconds in case.outside:
        rows.append(_row(name, begun_s, seconds, None, outside=True))
        begun_s += seconds
    begun_s = 0.0
    for name, seconds in case.stages.items():
        predicted_s = expected.get(f"{name}_s")
        if seconds or predicted_s:
            rows.append(_row(name, begun_s, seconds, predicted_s, outside=False))
        begun_s += seconds
    return rows


def _row(stage: str, begun_s: float, took_s: float, predicted_s: float | None, *, outside: bool) -> dict[str, Any]:
    return {
        "stage": stage,
        "outside": outside,
        "begun_s": round(begun_s, 6),
        "took_s": round(took_s, 6),
        "predicted_s": None if predicted_s is None else round(predicted_s, 6),
    }
