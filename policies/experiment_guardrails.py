"""When an arm is stopped by itself, and within how many requests an arm that is so much worse will have been."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial

from policies import experiment_intervals as intervals
from policies import experiment_shares as shares
from policies.experiment_intervals import FEWEST
from policies.experiment_shares import Tally
from policies.value import value

SURE = 0.95
"""The share of such arms that are stopped within what is stated."""
_DEVIATIONS = 1.645
"""Standard deviations below which a normal variable is with a probability of ``SURE``."""
_SHARES = (0.2, 0.5, 1.0)
"""Differences of shares for which a number is stated: one in five, half, all."""
_FACTORS = (4.0 / 3.0, 2.0)
"""Multiples of a factor's limit for which a number is stated."""
_MOST = 1 << 20
"""Requests beyond which an arm is as good as never stopped."""


class Guardrail(StrEnum):
    """What is watched in an arm."""

    ERRORS = "errors"
    FAULTS = "faults"
    """Of the answers' form."""
    TTFT = "ttft"


@value
class Complaint:
    """What is certainly worse in an arm than is allowed. ``text`` is for a person."""

    guardrail: Guardrail
    text: str


@value
class Promise:
    """An arm that is ``worse`` by so much than the first is stopped ``within`` so many observations of both together,
    in ``SURE`` of all cases at the present split.

    ``worse`` and ``limit`` are differences of shares, for the TTFT factors. ``within`` is ``None`` where that cannot be
    told: the TTFT's spread is not known yet, or one of both gets no requests.
    """

    guardrail: Guardrail
    limit: float
    worse: float
    within: int | None


def of_share(
    guardrail: Guardrail, limit: float, first: float, split: Sequence[float], alpha: float, looked_at: float = 1.0
) -> list[Promise]:
    """Return what is promised of a share, where the first arm's is ``first`` and ``split`` are both arms' weights.

    ``looked_at`` is the part of the requests in which it is looked for.
    """

    def is_stopped(worse: float, n0: int, n1: int) -> bool:
        share = min(1.0, first + worse)
        bad0, bad1 = n0 * first + _DEVIATIONS * _spread(n0, first), n1 * share - _DEVIATIONS * _spread(n1, share)
        tallies = Tally(n0, min(n0, math.ceil(bad0))), Tally(n1, max(0, math.floor(bad1)))
        return shares.is_worse_by([tallies], limit, alpha)

    return [
        Promise(guardrail, limit, worse, _of_all(_within(split, partial(is_stopped, worse)), looked_at))
        for worse in _SHARES
        if worse > limit
    ]


def of_ttft(limit: float, variance: float, split: Sequence[float], alpha: float) -> list[Promise]:
    """Return what is promised of the TTFT, whose logarithm has this variance in either arm; infinite: not known."""

    def is_stopped(worse: float, n0: int, n1: int) -> bool:
        if min(n0, n1) < FEWEST:
            return False
        known = 1.0 / max(variance / n0 + variance / n1, 1e-12)
        low = math.log(worse) - _DEVIATIONS / math.sqrt(known) - intervals.half_width(known, alpha)
        return low > math.log(limit)

    return [
        Promise(
            Guardrail.TTFT,
            limit,
            worse,
            _within(split, partial(is_stopped, worse)) if math.isfinite(variance) else None,
        )
        for worse in (factor * limit for factor in _FACTORS)
    ]


def _within(split: Sequence[float], is_stopped: Callable[[int, int], bool]) -> int | None:
    """The fewest observations of both arms together that are enough, with a draw that gives the new one few."""
    whole = sum(split)
    if not whole or min(split) <= 0.0:
        return None
    share = split[1] / whole

    def is_enough(n: int) -> bool:
        n1 = max(0, math.floor(n * share - _DEVIATIONS * _spread(n, share)))
        return is_stopped(n - n1, n1)

    high = 1
    while not is_enough(high):
        high *= 2
        if high > _MOST:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _of_all(within: int | None, looked_at: float) -> int | None:
    return None if within is None or looked_at <= 0.0 else math.ceil(within / looked_at)


def _spread(n: int, share: float) -> float:
    return math.sqrt(n * share * (1.0 - share))
