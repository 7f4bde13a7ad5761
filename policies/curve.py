"""A curve through measured points: piecewise linear, never falling, never negative."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from statistics import median

_LEAST_TAIL = 0.5
"""Beyond its last knot a curve rises at least with this part of its mean slope, should noise have flattened it."""


class Curve:
    """Seconds over tokens. ``at`` extends the curve to both sides; it is 0 or more and never falls.

    A curve of work (the default) tends to 0 with the tokens, and rises beyond its last knot even when noise has
    flattened it; a curve of a rate (``is_rate``), such as TPOT over the context, may be flat.
    """

    __slots__ = ("is_rate", "knots", "slopes", "steps", "values")

    def __init__(self, points: Iterable[tuple[float, float]], *, is_rate: bool = False) -> None:
        """Fit points (tokens, value); several at one place count as their median. Raises ``ValueError`` for none."""
        self.is_rate = is_rate
        self.knots = _monotone(_medians(points))
        if not self.knots:
            raise ValueError("a curve needs a point")
        first_tokens, first_value = self.knots[0]
        last_tokens, last_value = self.knots[-1]
        slopes = [(b - a) / (n - m) for (m, a), (n, b) in pairwise(self.knots)]
        head = first_value / first_tokens if first_tokens > 0 and not (is_rate and not slopes) else 0.0
        if slopes:
            head = min(head, slopes[0])
        tail = slopes[-1] if slopes else 0.0
        if not is_rate and last_tokens > 0:
            tail = max(tail, _LEAST_TAIL * last_value / last_tokens)
        self.steps = [0.0, *(tokens for tokens, _ in self.knots)]
        self.values = [max(0.0, first_value - head * first_tokens), *(value for _, value in self.knots)]
        self.slopes = [head, *slopes, tail]
        """Of the line that begins at a step with its value."""

    def at(self, tokens: float) -> float:
        """Return the value at a number of tokens, 0 or more."""
        i = bisect_right(self.steps, tokens) - 1
        return self.values[i] + self.slopes[i] * (tokens - self.steps[i])

    @property
    def mean_slope(self) -> float:
        """The last knot's value per token: what a token costs in the mean of a long prompt."""
        tokens, value = self.knots[-1]
        return value / tokens if tokens > 0 else 0.0


def _medians(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    places: dict[float, list[float]] = {}
    for tokens, value in points:
        places.setdefault(float(tokens), []).append(value)
    return [(tokens, median(values)) for tokens, values in sorted(places.items())]


def _monotone(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Make values never fall, with the least squared change (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for _, value in points:
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            before, members = pools.pop()
            mean = (before * members + mean * count) / (members + count)
            count += members
        pools.append((mean, count))
    values = [mean for mean, count in pools for _ in range(count)]
    return [(tokens, value) for (tokens, _), value in zip(points, values, strict=True)]
