"""How far to trust predictions: intervals that hold four of five outcomes, and whether they did."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from itertools import accumulate
from math import exp
from typing import Any, NamedTuple

_COMPANY = (0.1, 1.0, 3.0)
"""Requests beside a prediction from which it counts as having little, some and much company."""
_WINDOW = 200
_SCALE_RATE = 0.05
_LEAST_SCALE, _MOST_SCALE = 0.25, 4.0


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


class Coverage(NamedTuple):
    """How many of the last outcomes their intervals held: 75 to 85 % of them, when all is well."""

    held: int
    seen: int

    @property
    def share(self) -> float:
        """0 to 1; 0 before there is any outcome."""
        return self.held / self.seen if self.seen else 0.0


class Intervals:
    """Spreads by the company that a request has, since what comes later is what a prediction cannot know.

    Company is the number of other requests that are there when a request is predicted, or that usually run beside one
    (which is the arrival rate times the time that one takes). More of it never has a narrower interval. All are scaled
    so that what was promised holds. The last 200 outcomes are remembered.
    """

    __slots__ = ("_held", "_scale", "_spreads", "_widths")

    def __init__(self) -> None:
        self._spreads = [Spread() for _ in range(len(_COMPANY) + 1)]
        self._scale = 1.0
        self._held: deque[bool] = deque(maxlen=_WINDOW)
        self._set_widths()

    @property
    def alone(self) -> float:
        """Relative half-width of the interval of a request without company."""
        return self._widths[0]

    def half_width(self, company: float) -> float:
        """Return the relative half-width of the interval at a number of other requests."""
        return self._widths[bisect_right(_COMPANY, company)]

    @property
    def coverage(self) -> Coverage:
        """Return how many of the last 200 outcomes were held."""
        return Coverage(sum(self._held), len(self._held))

    def judge(self, actual_s: float, predicted_s: float, spread: float) -> None:
        """Count whether an interval that was given to somebody held."""
        held = abs(actual_s / predicted_s - 1.0) <= spread
        self._held.append(held)
        scale = self._scale * exp(_SCALE_RATE * (-0.2 if held else 0.8))
        self._scale = max(_LEAST_SCALE, min(_MOST_SCALE, scale))

    def learn(self, actual_s: float, predicted_s: float, company: float) -> None:
        """Take one outcome: widen or narrow the interval for such company."""
        self._spreads[bisect_right(_COMPANY, company)].learn(actual_s, predicted_s)
        self._set_widths()

    def _set_widths(self) -> None:
        """A place where nothing was seen yet is as wide as the one before it, or the next one, or the start."""
        seen = [spread.half_width if spread.seen else 0.0 for spread in self._spreads]
        first = next((width for width in seen if width), Spread.START)
        self._widths = list(accumulate(seen, max, initial=0.0))[1:]
        self._widths = [self._scale * (width or first) for width in self._widths]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values only."""
        return {
            "spreads": [[spread.half_width, spread.seen] for spread in self._spreads],
            "scale": self._scale,
            "held": [int(held) for held in self._held],
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Intervals:
        """The way back from ``to_dict``. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything else."""
        intervals = cls()
        spreads = [Spread(float(half_width), int(seen)) for half_width, seen in plain["spreads"]]
        if len(spreads) != len(intervals._spreads):
            raise ValueError(f"intervals need {len(intervals._spreads)} spreads")
        intervals._spreads = spreads
        intervals._scale = max(_LEAST_SCALE, min(_MOST_SCALE, float(plain["scale"])))
        intervals._held.extend(bool(held) for held in plain["held"])
        intervals._set_widths()
        return intervals
