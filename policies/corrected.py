"""A measured curve and what served requests have corrected of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import exp, inf, log
from typing import Any

from policies.curve import Curve
from policies.drift import OUTLIER, Drift

BUCKETS = (64, 256, 1024, 4096)
"""Tokens at which one bucket of lengths ends and the next begins."""
_OWN_WEIGHT = 0.05
"""Part of a settled residual, beyond what all lengths share, that a bucket believes to be its own."""
_OWN_PRIOR = 3
"""Residuals that a bucket is taken to have seen already, all of them 0: the first ones go to all lengths first."""
_FURTHEST = log(1.3)
"""A measurement with few lengths is off by 5 to 21 % between them. Since this part does not fade, more of it would keep
a deployment that was slow for a while from being chosen, and corrected, again."""
_OF_THE_MACHINE = 0.05
"""Part of each log residual that says something of all that run on the machine (``Machine``). With six real engines on
two cores, whose speed wandered together, the mean error of predicted totals fell from 13.6 to 12.9 %. Twice as much
made it 12.6 %, but followed what is a deployment's own half as fast.
"""
_REBUILD = 0.01
"""Change of a bucket's correction (log) from which the curve is drawn anew."""


class CorrectedCurve:
    """Seconds over tokens: a measured curve × a drift that all on its machine share × one that all lengths share × a
    correction of each length bucket.

    All three are recursive least squares of log(actual / predicted) with forgetting, outliers clipped. The drifts are
    quick and fade (a machine's speed changes by the minute); the buckets are slow and stay (the measurement has few
    lengths). The curve never falls, corrected or not. Whoever changes ``machine`` from elsewhere calls ``renew``.
    """

    __slots__ = (
        "_drawn",
        "_drift",
        "_factor",
        "_machine",
        "_mean_slope",
        "_own",
        "_points",
        "_seen",
        "_slopes",
        "_steps",
        "_until",
        "_values",
    )

    def __init__(
        self, points: Iterable[tuple[float, float]], *, is_rate: bool = False, machine: Drift | None = None
    ) -> None:
        """Fit points (tokens, seconds) as ``Curve`` does. Raises ``ValueError`` when there is none."""
        self._machine = machine or Drift()
        self._points = Curve(points, is_rate=is_rate)
        self._mean_slope = self._points.mean_slope
        # A measurement was made at the speed that the machine had then.
        self._drift = self._machine.complement(0.0, settled=False)
        self._own = [0.0] * (len(BUCKETS) + 1)
        self._seen = [0] * (len(BUCKETS) + 1)
        self._factor = 1.0
        self.renew()
        self._draw()

    def at(self, tokens: float, now: float) -> float:
        """Return the seconds for a number of tokens, 0 or more."""
        if now >= self._until:
            self._fade(now)
        i = bisect_right(self._steps, tokens) - 1
        return (self._values[i] + self._slopes[i] * (tokens - self._steps[i])) * self._factor

    def factor(self, now: float) -> float:
        """Return the drifts' factor on all lengths."""
        if now >= self._until:
            self._fade(now)
        return self._factor

    @property
    def knots(self) -> list[tuple[float, float]]:
        """The measured points (tokens, seconds), in the order of tokens."""
        return self._points.knots

    def measured_at(self, tokens: float) -> float:
        """Return what the measurement alone says."""
        return self._points.at(tokens)

    def per_token_s(self, now: float) -> float:
        """Return what a token costs in the mean of a long text."""
        return self._mean_slope * self.factor(now)

    def renew(self) -> None:
        """Look at the machine's drift anew, at the next use."""
        self._until = -inf

    def learn(self, tokens: float, actual_s: float, predicted_s: float, now: float) -> None:
        """Move towards what was seen. ``predicted_s`` is ``at(tokens, now)``; both are more than 0."""
        residual = max(-OUTLIER, min(OUTLIER, log(actual_s / predicted_s)))
        rest = residual - self._machine.follow(residual, _OF_THE_MACHINE, now)
        rest -= self._drift.learn(rest, now)
        bucket = bisect_right(BUCKETS, tokens)
        self._seen[bucket] += 1
        weight = max(_OWN_WEIGHT, 1.0 / (1.0 + _OWN_PRIOR + self._seen[bucket]))
        self._own[bucket] = max(-_FURTHEST, min(_FURTHEST, self._own[bucket] + weight * rest))
        self._fade(now)
        if abs(self._own[bucket] - self._drawn[bucket]) > _REBUILD:
            self._draw()

    def _fade(self, now: float) -> None:
        self._factor = self._machine.factor(now) * self._drift.factor(now)
        self._until = min(self._machine.next_step_at(now), self._drift.next_step_at(now))

    def _draw(self) -> None:
        """Work the buckets' corrections into the curve: at its own knots, and in the middle of each bucket."""
        points = self._points
        if any(self._own):
            edges = (0, *BUCKETS, 2 * BUCKETS[-1])
            middles = {(a + b) / 2 for a, b in pairwise(edges)}
            places = sorted({tokens for tokens, _ in points.knots} | middles)
            corrected = ((n, points.at(n) * exp(self._own[bisect_right(BUCKETS, n)])) for n in places)
            points = Curve(corrected, is_rate=points.is_rate)
        self._drawn = list(self._own)
        self._steps, self._values, self._slopes = points.steps, points.values, points.slopes

    def to_dict(self) -> dict[str, Any]:
        """Return the corrections as plain values; the points are the measurement's. What is kept is used from here on,
        so that what is restored is the same curve."""
        self._draw()
        drift = self._machine.log_at_rest + self._drift.log_at_rest
        return {"drift": {"log": drift}, "own": list(self._own), "seen": list(self._seen)}

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Take back what ``to_dict`` gave. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything else."""
        own, seen = [float(value) for value in plain["own"]], [int(value) for value in plain["seen"]]
        if len(own) != len(self._own) or len(seen) != len(self._seen):
            raise ValueError(f"corrections need {len(self._own)} buckets")
        self._drift = self._machine.complement(float(plain["drift"]["log"]), settled=True)
        self._own = [max(-_FURTHEST, min(_FURTHEST, value)) for value in own]
        self._seen = seen
        self.renew()
        self._draw()
