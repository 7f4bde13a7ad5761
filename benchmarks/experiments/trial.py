"""One experiment from its first request to its end, judged after every request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.experiments.laws import Law
from policies.experiment import Arm, Experiment, Sticky, assign, weights
from policies.experiment_evidence import Evidence


@dataclass(frozen=True, slots=True)
class Trial:
    """What is tried: two laws, and the shares of the second, each for an equal part of the ``requests``."""

    name: str
    first: Law
    second: Law
    requests: int
    ramp: Sequence[float] = (0.5,)


@dataclass(frozen=True, slots=True)
class End:
    """After how many requests a verdict was there, and an arm was stopped; 0: never."""

    verdict_at: int
    stopped_at: int


def run(trial: Trial, random: Random) -> End:
    """Draw and judge until both have been said, or the end."""
    users = trial.first.users
    experiment = Experiment(
        f"trial-{random.random()}", "m", (Arm("a"), Arm("b")), sticky=Sticky.USER if users else Sticky.REQUEST
    )
    evidence = Evidence(experiment)
    shares: tuple[float, ...] = ()
    tempers = [random.gauss(0.0, trial.first.users_sigma) for _ in range(users)]
    verdict_at = stopped_at = 0
    for request in range(trial.requests):
        wanted = weights(2, trial.ramp[request * len(trial.ramp) // trial.requests])
        if wanted != shares:
            shares = wanted
            evidence.begin(shares)
            alpha = evidence.verdict_alpha()
        user = random.randrange(users) if users else 0
        unit = str(user if users else request)
        arm = assign(experiment.name, unit, shares)
        evidence.expose(arm, unit)
        law = trial.second if arm else trial.first
        evidence.add(law.draw(random, evidence.stage, arm, unit, tempers[user] if users else 0.0))
        if not verdict_at and evidence.difference(1, experiment.metric, alpha).shown:
            verdict_at = request + 1
        if not stopped_at and evidence.complaint(1):
            stopped_at = request + 1
        if verdict_at and stopped_at:
            break
    return End(verdict_at, stopped_at)
