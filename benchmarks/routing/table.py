"""Runs of the scenarios under all policies, and what comes out of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import mean, stdev

from benchmarks.routing.oracle import Oracle
from benchmarks.routing.ours import Paceline
from benchmarks.routing.policy import (
    LeastBusy,
    LowestLatency,
    PeakEwma,
    Policy,
    Random,
    RoundRobin,
    TwoChoices,
)
from benchmarks.routing.scenes import scene
from benchmarks.routing.world import World, simulate

OURS, ORACLE = Paceline.name, Oracle.name
POLICIES: dict[str, Callable[[World, int], Policy]] = {
    Random.name: lambda world, seed: Random(seed),
    RoundRobin.name: lambda world, seed: RoundRobin(),
    LeastBusy.name: lambda world, seed: LeastBusy(),
    LowestLatency.name: lambda world, seed: LowestLatency(seed),
    PeakEwma.name: lambda world, seed: PeakEwma(),
    TwoChoices.name: lambda world, seed: TwoChoices(seed),
    OURS: Paceline,
    ORACLE: lambda world, seed: Oracle(world),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One scenario under one policy with one seed: mean, median and 95th percentile, in seconds."""

    scene: str
    policy: str
    seed: int
    ttft_s: tuple[float, float, float]
    total_s: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """One scenario under one policy over all seeds.

    ``regret`` is the part by which the mean total is above the oracle's; ``against_ours`` that by which it is above
    ours, seed by seed, with the half-width of its 95 % interval: a policy is better than ours beyond noise when the
    sum of both is below 0.
    """

    scene: str
    policy: str
    ttft_s: tuple[float, float, float]
    total_s: tuple[float, float, float]
    regret: float
    against_ours: float
    noise: float


def outcomes(scenes: Sequence[str], seeds: Sequence[int], n: int, *, processes: int) -> Iterator[Outcome]:
    """Run everything and yield what comes, as it comes."""
    jobs = [(name, policy, seed, n) for name in scenes for seed in seeds for policy in POLICIES]
    if processes == 1:
        yield from (_run(*job) for job in jobs)
        return
    with ProcessPoolExecutor(min(processes, os.cpu_count() or 1)) as pool:
        yield from pool.map(_run, *zip(*jobs, strict=True), chunksize=4)


def lines(seen: Sequence[Outcome]) -> list[Line]:
    """Sum up the seeds; the order is that in which scenes and policies appear."""
    totals = {(each.scene, each.policy, each.seed): each.total_s[0] for each in seen}
    summed = []
    for name, policy in dict.fromkeys((each.scene, each.policy) for each in seen):
        runs = [each for each in seen if (each.scene, each.policy) == (name, policy)]
        own = mean(run.total_s[0] for run in runs)
        ratios = [run.total_s[0] / totals[name, OURS, run.seed] - 1.0 for run in runs]
        summed.append(
            Line(
                name,
                policy,
                _means([run.ttft_s for run in runs]),
                _means([run.total_s for run in runs]),
                own / mean(totals[name, ORACLE, run.seed] for run in runs) - 1.0,
                mean(ratios),
                2.3 * stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0,
            )
        )
    return summed


def _run(name: str, policy: str, seed: int, n: int) -> Outcome:
    answered = simulate(scene(name, seed, n), lambda world: POLICIES[policy](world, seed))
    return Outcome(
        name,
        policy,
        seed,
        _figures([request.ttft_s for request in answered]),
        _figures([request.total_s for request in answered]),
    )


def _figures(values: Sequence[float]) -> tuple[float, float, float]:
    ordered = sorted(values)
    return mean(ordered), ordered[len(ordered) // 2], ordered[int(0.95 * len(ordered))]


def _means(figures: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    first, second, third = (mean(column) for column in zip(*figures, strict=True))
    return first, second, third
