"""How far reality has moved away from the measurement, learned from requests that were served."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log
from typing import Any

_WEIGHT = 0.2
"""Part of each new log residual that is believed: what followed real engines best (their speed drifts by minutes)."""
_SETTLED = 4
"""Residuals after which each is believed by that part alone. The first ones (half, a third, …) correct a measurement
that was made in a bad moment."""
_OUTLIER = 0.5
"""Log residuals count up to this size, so that one odd request moves a settled prediction by a tenth at most."""
_FURTHEST = log(8.0)
_HALF_LIFE_S = 900.0
_FADE_STEP_S = 15.0


class Drift:
    """A factor on a predicted duration.

    It fades towards 1, the measurement, with a half-life of 15 minutes, so that a deployment that was slow once is not
    thought slow for ever. The first use after ``from_dict`` starts the clock again.
    """

    __slots__ = ("_at", "_factor", "_log", "_seen", "_step")

    def __init__(self) -> None:
        self._log = 0.0
        self._at: float | None = None
        self._step = 0
        self._factor = 1.0
        self._seen = 0

    def factor(self, now: float) -> float:
        """Return the factor at a time; it changes in steps of 15 s."""
        if self._log == 0.0:
            return 1.0
        if self._at is None:
            self._at = now
        step = int((now - self._at) / _FADE_STEP_S)
        if step != self._step:
            self._step = step
            self._factor = exp(self._log * 0.5 ** (max(0, step) * _FADE_STEP_S / _HALF_LIFE_S))
        return self._factor

    def learn(self, actual_s: float, predicted_s: float, now: float) -> None:
        """Move towards what was seen. ``predicted_s`` includes ``factor(now)``; both are more than 0."""
        residual = max(-_OUTLIER, min(_OUTLIER, log(actual_s / predicted_s)))
        self._seen += 1
        self._set(log(self.factor(now)) + max(_WEIGHT, 1.0 / (1.0 + self._seen)) * residual)
        self._at = now

    def _set(self, value: float) -> None:
        self._log = max(-_FURTHEST, min(_FURTHEST, value))
        self._step = 0
        self._factor = exp(self._log)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values only."""
        return {"log": self._log}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Drift:
        """The way back from ``to_dict``. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything else."""
        drift = cls()
        drift._set(float(plain["log"]))
        drift._seen = _SETTLED
        return drift


class Spread:
    """The relative error that four of five predictions stay under, tracked outcome by outcome.

    A quantile by stochastic approximation: a miss widens by as much as four hits narrow, so that the interval holds
    80 % of outcomes whatever their distribution. It starts wide and its first steps are large.
    """

    __slots__ = ("half_width", "seen")

    START = 0.4
    NARROWEST = 0.03
    WIDEST = 3.0

    def __init__(self, half_width: float = START, seen: int = 0) -> None:
        self.half_width = half_width
        self.seen = seen

    def learn(self, actual_s: float, predicted_s: float) -> None:
        """Count one outcome."""
        self.seen += 1
        rate = 0.1 + 0.6 / (1.0 + 0.2 * self.seen)
        missed = abs(actual_s / predicted_s - 1.0) > self.half_width
        wider = self.half_width * exp(rate * (0.8 if missed else -0.2))
        self.half_width = max(self.NARROWEST, min(self.WIDEST, wider))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values only."""
        return {"half_width": self.half_width, "seen": self.seen}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Spread:
        """The way back from ``to_dict``. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything else."""
        return cls(float(plain["half_width"]), int(plain["seen"]))
