"""What is known of a fingerprint beyond its speed: its quality and whether it is stable. Kept in the record store."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from policies.types import Deployment, Quality

_log = logging.getLogger(__name__)


class Judged(StrEnum):
    """What a verdict is about. Each kind is kept with its details, as plain JSON values."""

    QUALITY = "quality"
    """``{"quality": "baseline" | "passed" | "failed", …}``, from the quality regression."""
    STABILITY = "stability"
    """``{"stable": true | false, …}``, from many requests in a row."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """All that routing wants to know of it."""

    quality: Quality = Quality.UNTESTED
    stable: bool = False

    def of(self, deployment: Deployment) -> Deployment:
        """Return the deployment with this verdict."""
        return replace(deployment, quality=self.quality, stable=self.stable)


UNJUDGED = Verdict()

Details = Mapping[str, Mapping[str, Any]]
"""Verdicts of one kind with their details, by fingerprint."""


def combine(quality: Details, stability: Details) -> dict[str, Verdict]:
    """Return the verdicts by fingerprint. What cannot be read, since another version wrote it, counts as unjudged."""
    return {
        fingerprint: Verdict(
            quality=_quality(quality.get(fingerprint, {})),
            stable=stability.get(fingerprint, {}).get("stable") is True,
        )
        for fingerprint in quality.keys() | stability.keys()
    }


def _quality(details: Mapping[str, Any]) -> Quality:
    try:
        return Quality(details.get("quality", Quality.UNTESTED))
    except ValueError:
        _log.debug("an unknown quality is left out: %r", details["quality"])
        return Quality.UNTESTED
