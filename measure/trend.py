"""A trend that single odd values do not move: Theil and Sen's slope, within groups that are not alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median

LEAST_PAIRS = 10
"""Fewer pairs of values than this show no trend."""
_NORMAL_95 = 1.96


@dataclass(frozen=True, slots=True)
class Trend:
    """A slope (value per step) with its 95 % interval."""

    slope: float
    low: float
    high: float


def trend(groups: Iterable[Sequence[tuple[float, float]]]) -> Trend | None:
    """Return the slope that all groups of (step, value) have in common; ``None`` where there are too few values.

    Values are compared within their group only, so that groups may lie at any height: Sen's slope for seasonal data
    and its interval (Hirsch, Slack and Smith 1982; Gilbert, *Statistical Methods for Environmental Pollution
    Monitoring*, 1987, 17.3). Up to 29 % of the values may be odd.
    """
    slopes: list[float] = []
    variance = 0.0
    for group in groups:
        points = sorted(group)
        n = len(points)
        slopes += [
            (later[1] - earlier[1]) / (later[0] - earlier[0])
            for i, earlier in enumerate(points)
            for later in points[i + 1 :]
            if later[0] > earlier[0]
        ]
        variance += n * (n - 1) * (2 * n + 5) / 18.0
    if len(slopes) < LEAST_PAIRS:
        return None
    slopes.sort()
    reach = _NORMAL_95 * sqrt(variance)
    last = len(slopes) - 1
    low = max(0, min(last, int((len(slopes) - reach) / 2.0) - 1))
    high = max(0, min(last, int((len(slopes) + reach) / 2.0)))
    return Trend(median(slopes), slopes[low], slopes[high])


def by_group(points: Iterable[tuple[object, float, float]]) -> Mapping[object, list[tuple[float, float]]]:
    """Sort (group, step, value) into groups."""
    groups: dict[object, list[tuple[float, float]]] = {}
    for group, step, value in points:
        groups.setdefault(group, []).append((step, value))
    return groups
