"""How sure a difference is between two deployments that answered the same prompts. Pure, and the same every time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

RESAMPLES = 2000
OUTSIDE = 0.05
"""The share of cases beyond each end of an interval: a difference is below its upper end with 95 % confidence."""

_Z = 1.6448536269514722
"""The standard normal's quantile at 1 − ``OUTSIDE``."""
_SEED = 1


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its ends."""

    value: float
    low: float
    high: float


def ratio_of_sums(parts: Sequence[tuple[float, float]]) -> Interval:
    """Return the sum of all firsts over the sum of all seconds, one part for each prompt.

    Percentile bootstrap over the prompts: tokens of one answer depend on each other, answers do not. Raises
    ``ValueError`` when the seconds are all 0.
    """
    firsts, seconds = [first for first, _ in parts], [second for _, second in parts]
    if not any(seconds):
        raise ValueError("nothing to divide by")
    random = Random(_SEED)
    draws: list[float] = []
    for _ in range(RESAMPLES):
        drawn = random.choices(range(len(parts)), k=len(parts))
        if below := sum(map(seconds.__getitem__, drawn)):
            draws.append(sum(map(firsts.__getitem__, drawn)) / below)
    draws.sort()
    outside = round(len(draws) * OUTSIDE)
    return Interval(sum(firsts) / sum(seconds), draws[outside], draws[-1 - outside])


def mean(values: Sequence[float]) -> Interval:
    """Return the mean over the prompts; see ``ratio_of_sums``."""
    return ratio_of_sums([(value, 1.0) for value in values])


def paired_difference(lost: int, gained: int, prompts: int) -> Interval:
    """Return the difference of two shares of the same prompts: ``lost`` count for it, ``gained`` against it.

    Agresti and Min, "Simple improved confidence intervals for comparing matched proportions", Statistics in Medicine
    24 (2005): half a case is added to each of the four cells. Unlike a bootstrap it is no point when nothing differs.
    """
    n = prompts + 2.0
    differ = lost + gained + 1.0
    centre = (lost - gained) / n
    half = _Z * math.sqrt(differ - (lost - gained) ** 2 / n) / n
    return Interval((lost - gained) / prompts if prompts else 0.0, max(-1.0, centre - half), min(1.0, centre + half))
