"""Traffic that is drawn: what the requests of one arm show."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from policies.experiment_metrics import Outcome


@dataclass(frozen=True, slots=True)
class Law:
    """Times are log-normal: ``ttft_s`` and ``total_s`` are medians, ``sigma`` the deviation of their logarithms.

    ``users`` share the requests, each slower or faster than others by a factor with the deviation ``users_sigma``;
    none at all: each request is its own.
    """

    ttft_s: float = 0.4
    total_s: float = 4.0
    sigma: float = 0.6
    errors: float = 0.01
    users: int = 0
    users_sigma: float = 0.0

    def draw(self, random: Random, stage: int, arm: int, unit: str, user: float) -> Outcome:
        """Return what one request shows."""
        if random.random() < self.errors:
            return Outcome(stage, arm, unit, failed=True)
        length = random.gauss(user, self.sigma)
        return Outcome(
            stage,
            arm,
            unit,
            ttft_s=self.ttft_s * math.exp(random.gauss(user, self.sigma)),
            total_s=self.total_s * math.exp(length),
        )
