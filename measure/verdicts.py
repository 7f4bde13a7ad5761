"""What is known of a fingerprint beyond its speed: its quality and whether it is stable. Kept in the record store."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from measure.quality.roles import as_good
from policies.types import Deployment, Precision, Quality

_log = logging.getLogger(__name__)


class Judged(StrEnum):
    """What a verdict is about. Each kind is kept with its details, as plain JSON values."""

    QUALITY = "quality"
    """``{"quality": "baseline" | "passed" | "failed", …}``, from the quality regression."""
    STABILITY = "stability"
    """``{"stable": true | false, …}``, from many requests in a row."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """All that routing wants to know of it. ``why`` is the quality's reason for a person, ``baseline`` the precision
    that it was compared with."""

    quality: Quality = Quality.UNTESTED
    stable: bool = False
    why: str = ""
    baseline: Precision | None = None


UNJUDGED = Verdict()

Details = Mapping[str, Mapping[str, Any]]
"""Verdicts of one kind with their details, by fingerprint."""


def combine(quality: Details, stability: Details) -> dict[str, Verdict]:
    """Return the verdicts by fingerprint. What cannot be read, since another version wrote it, counts as unjudged."""
    return {
        fingerprint: _verdict(quality.get(fingerprint, {}), stability.get(fingerprint, {}))
        for fingerprint in quality.keys() | stability.keys()
    }


@dataclass(frozen=True, slots=True)
class Standing:
    """A deployment with what was judged of it, and why its quality is what it is, for a person; "" when untested."""

    deployment: Deployment
    why: str = ""


def standings(
    deployments: Sequence[Deployment], verdicts: Mapping[str, Verdict], trusted: Mapping[str, Precision]
) -> list[Standing]:
    """Return how each deployment stands.

    A comparison with a quantised baseline no longer counts for it once the model has a better precision. ``trusted`` is
    the least precision, by model, that the configuration calls good: it comes before every verdict, and says so.
    """
    best: dict[str, Precision] = {}
    for each in deployments:
        if not each.hosted and each.precision.rank > best.get(each.model, Precision.UNKNOWN).rank:
            best[each.model] = each.precision
    return [
        _standing(each, verdicts.get(each.fingerprint, UNJUDGED), best.get(each.model), trusted.get(each.model))
        for each in deployments
    ]


def _standing(deployment: Deployment, verdict: Verdict, best: Precision | None, trusted: Precision | None) -> Standing:
    quality, why = verdict.quality, verdict.why
    good = quality in (Quality.BASELINE, Quality.PASSED)
    if good and verdict.baseline and best and not as_good(verdict.baseline, best):
        good, quality, why = False, Quality.UNTESTED, f"tested against {verdict.baseline} only, and there is {best} now"
    if not good and trusted is not None and deployment.precision.rank >= trusted.rank:
        failed = f"; its regression failed: {why}" if quality is Quality.FAILED else ""
        quality, why = Quality.PASSED, f"stated by configuration{failed}"
    return Standing(replace(deployment, quality=quality, stable=verdict.stable), why)


def _verdict(quality: Mapping[str, Any], stability: Mapping[str, Any]) -> Verdict:
    why, against = quality.get("why", ""), quality.get("baseline")
    return Verdict(
        quality=_quality(quality),
        stable=stability.get("stable") is True,
        why=why if isinstance(why, str) else "",
        baseline=_precision(against.get("precision")) if isinstance(against, Mapping) else None,
    )


def _quality(details: Mapping[str, Any]) -> Quality:
    try:
        return Quality(details.get("quality", Quality.UNTESTED))
    except ValueError:
        _log.debug("an unknown quality is left out: %r", details["quality"])
        return Quality.UNTESTED


def _precision(value: object) -> Precision | None:
    return next((each for each in Precision if each == value), None)
