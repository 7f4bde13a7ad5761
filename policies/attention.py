"""What tokens of a prompt cost for those that stand before them: attention over what a cache holds already, and over
more than was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_PRIOR = 2e-4
"""Cost of a pair, over that of a token in the mean of the longest prompt that was measured: what is expected before
anything is known. Measured with 0.1 billion parameters (two engines on two cores): 5e-4 and 9e-4; by the arithmetic of
a Llama with 8 billion 0.3e-4."""
_PRIOR_SD = 4e-4
_MEASURED_SD = 0.08
"""Relative standard deviation of a point of the measurement, and of a served request."""
_SERVED_SD = 0.2


class Attention:
    """Seconds for each pair of a token that is read and a token before it.

    A prompt of n tokens takes a + b * n + ``pair_s`` * n^2 / 2 seconds, u tokens behind c that a cache holds
    a + b * u + ``pair_s`` * (u^2 / 2 + u * c). The measured curve has the first, as far as it goes; ``beyond`` counts
    the pairs that it lacks. ``pair_s`` is fitted to the measurement, which knows little of it (its prompts are short),
    and learned from requests by a Kalman filter, the more the more pairs they have.
    """

    __slots__ = ("_last", "_middle", "_most", "_variance", "pair_s")

    def __init__(self, knots: Sequence[tuple[float, float]]) -> None:
        """Fit the points (tokens, seconds) of a measured curve: at least one, in the order of tokens."""
        self._last, seconds = knots[-1]
        self._middle = (knots[-2][0] + self._last) / 2 if len(knots) > 1 else self._last
        token_s = seconds / self._last if self._last > 0 else 0.0
        self._most = 2 * token_s / self._last if self._last > 0 else 0.0
        """As if all of the longest prompt's time were attention."""
        self.pair_s, self._variance = _fit(knots, token_s)
        self.pair_s = min(max(self.pair_s, 0.0), self._most)

    def beyond(self, read: float, held: float) -> float:
        """Return the pairs of ``read`` tokens after ``held`` ones that the curve does not hold.

        Beyond its last point a curve goes on with the slope that it has in the middle of its last stretch.
        """
        pairs = read * held
        over = read - self._last
        return pairs + over * (0.5 * over + self._last - self._middle) if over > 0 else pairs

    def learn(self, pairs: float, actual_s: float, rest_s: float) -> None:
        """Take a request with so many pairs ``beyond`` that took ``actual_s``, ``rest_s`` of it without them."""
        x, y = pairs / actual_s, 1.0 - rest_s / actual_s
        gain = x * self._variance / (x * x * self._variance + _SERVED_SD * _SERVED_SD)
        self.pair_s = min(max(self.pair_s + gain * (y - x * self.pair_s), 0.0), self._most)
        self._variance *= 1.0 - gain * x

    def to_dict(self) -> dict[str, Any]:
        """Return plain values only, for a store; the rest is the measurement's."""
        return {"pair_s": self.pair_s, "variance": self._variance}

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Take back what ``to_dict`` gave. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything else."""
        pair_s, variance = float(plain["pair_s"]), float(plain["variance"])
        if not (pair_s >= 0.0 and variance >= 0.0):
            raise ValueError("seconds of a pair and their variance are 0 or more")
        self.pair_s, self._variance = min(pair_s, self._most), variance


def _fit(knots: Sequence[tuple[float, float]], token_s: float) -> tuple[float, float]:
    """Return seconds for a pair and their variance: least squares of relative errors, with what is expected as one more
    point (ridge regression)."""
    mean, precision = _PRIOR * token_s, 0.0
    if token_s > 0.0:
        precision = 1.0 / (_PRIOR_SD * token_s) ** 2
    points = [(n, s) for n, s in knots if s > 0.0 and n > 0]
    if len(points) < 2 or not precision:
        return mean, 1.0 / precision if precision else 0.0
    normal = [[0.0] * 3 for _ in range(3)]
    right = [0.0] * 3
    for n, s in points:
        terms = [part / (s * _MEASURED_SD) for part in (1.0, n, n * n / 2)]
        for i, term in enumerate(terms):
            right[i] += term / _MEASURED_SD
            for j, other in enumerate(terms):
                normal[i][j] += term * other
    normal[2][2] += precision
    right[2] += precision * mean
    (a, b, c), (_, d, e), (_, _, f) = normal
    # Of the normal equations only the third unknown is wanted: what is left of it once the others are eliminated.
    least = a * d - b * b
    left = f - (c * c * d - 2 * b * c * e + e * e * a) / least
    known = right[2] - (c * (d * right[0] - b * right[1]) + e * (a * right[1] - b * right[0])) / least
    return known / left, 1.0 / left
