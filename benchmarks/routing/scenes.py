"""The scenarios of the table: each a workload at a load that the fleet can carry when it is used well."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import exp

from benchmarks.routing.fleets import fleet
from benchmarks.routing.request import Request
from benchmarks.routing.scenario import DRIFT_STEP_S, Outage, Scenario
from benchmarks.routing.workloads import Dice, agents, bursts, chat, mixed, precise, rag

_DRIFT, _PULL = 0.05, 0.1
"""Step of a speed's logarithm, and the part of the way back that it takes in each: 11 % in the long run."""

_Draw = Callable[[Dice, int, float], list[Request]]

_SCENES: dict[str, tuple[_Draw, float, bool]] = {
    "chat": (chat, 1.1, False),
    "rag": (rag, 1.5, False),
    "agents": (agents, 0.9, False),
    "bursts": (bursts, 1.2, False),
    "precision": (precise, 1.2, False),
    "mixed": (mixed, 1.0, False),
    "mixed, an outage": (mixed, 1.0, True),
}
"""By name: what is asked, the mean seconds between two requests, whether the fastest engine dies for a while."""

NAMES = tuple(_SCENES)


def scene(name: str, seed: int, n: int) -> Scenario:
    """Draw a scenario with about ``n`` requests. The same arguments always give the same."""
    draw, gap_s, dies = _SCENES[name]
    members = fleet()
    dice = random.Random(f"{name} {seed}")
    requests = draw(Dice(dice, len(members)), n, gap_s)
    span_s = n * gap_s
    steps = int(span_s / DRIFT_STEP_S) + 2
    return Scenario(
        name,
        members,
        tuple(requests),
        tuple(_drifting(dice, steps) for _ in members),
        (Outage(2, 0.4 * span_s, 0.5 * span_s),) if dies else (),
    )


def _drifting(dice: random.Random, steps: int) -> tuple[float, ...]:
    level, speeds = 0.0, []
    for _ in range(steps):
        speeds.append(exp(level))
        level += dice.gauss(0.0, _DRIFT) - _PULL * level
    return tuple(speeds)
