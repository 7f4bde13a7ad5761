"""What is compared between arms, and how: each metric's kind and which way is better."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from policies.value import value


class Scale(StrEnum):
    """How a metric is compared."""

    RATIO = "ratio"
    """By the ratio of geometric means: times and speeds are skewed, their logarithms hardly."""
    SHARE = "share"
    """By the difference of two shares."""
    MEAN = "mean"
    """By the difference of two means."""


class Metric(NamedTuple):
    """``better`` is 1 where more is better, -1 where less is, 0 where neither is."""

    scale: Scale
    better: int
    unit: str


METRICS: Mapping[str, Metric] = {
    "ttft": Metric(Scale.RATIO, -1, "s"),
    "decode": Metric(Scale.RATIO, 1, "tokens/s"),
    "total": Metric(Scale.RATIO, -1, "s"),
    "output": Metric(Scale.RATIO, 0, "tokens"),
    "errors": Metric(Scale.SHARE, -1, ""),
    "cancelled": Metric(Scale.SHARE, -1, ""),
    "faults": Metric(Scale.SHARE, -1, ""),
    "score": Metric(Scale.MEAN, 1, ""),
}

_LEAST = 1e-6


@value
class Outcome:
    """What became of one request that was sent to ``arm`` in ``stage``.

    Times are seconds, speeds tokens/s, ``None`` where there is none.
    ``ttft_s`` and ``total_s`` are counted from the moment at which the route was decided.
    """

    stage: int
    arm: int
    unit: str
    failed: bool = False
    cancelled: bool = False
    ttft_s: float | None = None
    decode_per_s: float | None = None
    total_s: float | None = None
    output_tokens: int | None = None

    def values(self) -> dict[str, float]:
        """The metrics that it has, as they are added up: logarithms for ratios, 0 or 1 for shares."""
        found = {"errors": float(self.failed), "cancelled": float(self.cancelled)}
        for name, seen in (
            ("ttft", self.ttft_s),
            ("decode", self.decode_per_s),
            ("total", self.total_s),
            ("output", self.output_tokens),
        ):
            if seen is not None:
                found[name] = math.log(max(seen, _LEAST))
        return found
