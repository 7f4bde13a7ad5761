"""Differences of means with intervals that may be looked at after every request.

The interval is the normal mixture's: H. Robbins, "Statistical methods related to the law of the iterated logarithm"
(1970); for two streams as in R. Johari, P. Koomen, L. Pekelis and D. Walsh, "Always valid inference: continuous
monitoring of A/B tests" (2022); with estimated variances it is an asymptotic confidence sequence (I. Waudby-Smith,
D. Arbour, R. Sinha, E. H. Kennedy and A. Ramdas, "Time-uniform central limit theory and asymptotic confidence
sequences", 2024). With a probability of 1 − ``alpha`` it holds the truth at all times together, and not only at one
that was chosen in advance.

The difference D of two means has the variance V = σ₁²/n₁ + σ₂²/n₂, and D/V is a Brownian motion with the drift δ in the
time 1/V, whatever the order in which the two streams come. So parts of an experiment between which the weights changed
(strata) are added up, each compared within itself: a change of the weights together with a change of the traffic shows
no difference where there is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

FEWEST = 30
"""Observations of each arm that a stratum needs: below that an estimated variance is no variance."""
TYPICAL = 0.1
"""The difference for which the interval is tightest: the mixture's standard deviation."""
_LONGEST = 1e9


@dataclass(slots=True)
class Moments:
    """Number, mean and sum of squared deviations of what was seen (Welford's recurrence)."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Take one in."""
        self.n += 1
        delta = value - self.mean
        self.mean += delta / self.n
        self.squares += delta * (value - self.mean)

    def replace(self, old: float, new: float) -> None:
        """One of those that were taken in has changed."""
        delta = new - old
        before = self.mean
        self.mean += delta / self.n
        self.squares = max(0.0, self.squares + delta * (new - self.mean + old - before))

    @property
    def variance(self) -> float:
        """The variance of one observation; infinite for fewer than two."""
        return self.squares / (self.n - 1) if self.n > 1 else math.inf


class Difference(NamedTuple):
    """Second minus first, and between what it lies; all infinite while there is too little."""

    value: float
    low: float
    high: float

    @property
    def shown(self) -> int:
        """1 or -1 when the difference is certainly above or below nothing, else 0."""
        return 1 if self.low > 0.0 else -1 if self.high < 0.0 else 0


UNKNOWN = Difference(0.0, -math.inf, math.inf)


def information(first: Moments, second: Moments) -> float:
    """Return 1/V of two streams; 0 while either has fewer than ``FEWEST``, or neither varies."""
    if first.n < FEWEST or second.n < FEWEST:
        return 0.0
    variance = first.variance / first.n + second.variance / second.n
    return 1.0 / variance if variance > 0.0 else 0.0


def half_width(known: float, alpha: float, typical: float = TYPICAL) -> float:
    """Return how far the interval reaches to each side when the information is ``known``."""
    if known <= 0.0:
        return math.inf
    spread = typical * typical * known
    return math.sqrt((1.0 + spread) / spread * (2.0 * math.log(1.0 / alpha) + math.log1p(spread)) / known)


def difference(strata: Iterable[tuple[Moments, Moments]], alpha: float, typical: float = TYPICAL) -> Difference:
    """Return the difference of means over all strata, each weighted by what is known of it."""
    known = value = 0.0
    for first, second in strata:
        each = information(first, second)
        known += each
        value += each * (second.mean - first.mean)
    if known <= 0.0:
        return UNKNOWN
    value /= known
    width = half_width(known, alpha, typical)
    return Difference(value, value - width, value + width)


def times_more(known: float, effect: float, alpha: float, typical: float = TYPICAL) -> float:
    """Return by what factor the information has to grow until a difference of ``effect`` would be shown; 1 or more.

    Infinite when nothing is known. With equal traffic it is the factor for the number of requests as well.
    """
    if known <= 0.0 or effect <= 0.0:
        return math.inf
    if half_width(known, alpha, typical) <= effect:
        return 1.0
    low, high = 1.0, 2.0
    while half_width(known * high, alpha, typical) > effect and high < _LONGEST:
        low, high = high, high * 2.0
    for _ in range(40):
        middle = (low + high) / 2.0
        low, high = (low, middle) if half_width(known * middle, alpha, typical) <= effect else (middle, high)
    return high
