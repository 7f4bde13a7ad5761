"""How far a speed has moved away from the measurement, learned from requests that were served."""

from __future__ import annotations

from math import exp, inf, log

OUTLIER = 0.5
"""Log residuals count up to this size, so that one odd request moves a settled prediction by a tenth at most."""
_WEIGHT = 0.115
"""Part of each new log residual that is believed: with the machine's and the buckets' parts a fifth, which followed
real engines best (their speed drifts by minutes)."""
_SETTLED = 8
"""Residuals after which each is believed by that part alone. The first ones (half, a third, …) correct a measurement
that was made in a bad moment."""
_FURTHEST = log(8.0)
_HALF_LIFE_S = 900.0
_FADE_STEP_S = 15.0


class Drift:
    """A factor on a predicted duration.

    It fades towards 1, the measurement, with a half-life of 15 minutes, so that a deployment that was slow once is not
    thought slow for ever. It changes in steps of 15 s. The first use of one that was restored starts the clock again.
    """

    __slots__ = ("_at", "_log", "_seen")

    def __init__(self) -> None:
        self._log = 0.0
        self._at: float | None = None
        self._seen = 0

    @property
    def log_at_rest(self) -> float:
        """The factor's logarithm before it fades."""
        return self._log

    def factor(self, now: float) -> float:
        """Return the factor at a time."""
        if self._log == 0.0:
            return 1.0
        if self._at is None:
            self._at = now
        return exp(self._log * 0.5 ** (self._steps(now) * _FADE_STEP_S / _HALF_LIFE_S))

    def next_step_at(self, now: float) -> float:
        """Return the time until which the factor stays what it is."""
        if self._at is None or self._log == 0.0:
            return inf
        return self._at + (self._steps(now) + 1) * _FADE_STEP_S

    def _steps(self, now: float) -> int:
        return 0 if self._at is None else max(0, int((now - self._at) / _FADE_STEP_S))

    def learn(self, residual: float, now: float) -> float:
        """Take log(actual / predicted), predicted with ``factor(now)``. Returns the part that was believed."""
        self._seen += 1
        return self.follow(residual, max(_WEIGHT, 1.0 / (1.0 + self._seen)), now)

    def follow(self, residual: float, weight: float, now: float) -> float:
        """The same, where ``weight`` is the part that is believed."""
        believed = weight * residual
        self._log = max(-_FURTHEST, min(_FURTHEST, log(self.factor(now)) + believed))
        self._at = now
        return believed

    def complement(self, log_factor: float, *, settled: bool) -> Drift:
        """Return the drift that makes this factor together with this one, as long as neither learns. A ``settled`` one
        has seen enough to be where it is."""
        other = Drift()
        other._log = max(-_FURTHEST, min(_FURTHEST, log_factor - self._log))
        other._at = self._at
        other._seen = _SETTLED if settled else 0
        return other
