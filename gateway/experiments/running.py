"""One experiment as it runs: its present weights, what it has seen, and how it ends."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gateway.experiments.assigned import Assigned
from gateway.experiments.stops import Stops
from policies.experiment import MOST_STAGES, Experiment, Kind, assign, is_drawn, weights
from policies.experiment_evidence import Evidence
from policies.experiment_guardrails import Complaint, Guardrail
from policies.experiment_metrics import Outcome
from policies.selector import selects
from policies.types import Deployment

logger = logging.getLogger("paceline.experiments")

MOST_NOTES = 50


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened to an experiment. ``at`` is Unix time in seconds."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Stop:
    """An arm that its guardrails have stopped, ``at`` (Unix time in seconds), after so many requests of both arms."""

    arm: int
    guardrail: Guardrail
    at: float
    requests: int
    text: str


@dataclass(frozen=True, slots=True)
class State:
    """What changes of an experiment by command or by itself. Of two the one with the higher ``version`` holds.

    ``ended`` says why it is over, "" while it runs; ``stops`` are of arms that get nothing any more.
    ``stages`` are the weights, one entry for each time that they were set. ``declared``: by the configuration.
    """

    version: int
    began_at: float
    share: float
    stages: tuple[tuple[float, ...], ...]
    stops: tuple[Stop, ...] = ()
    ended: str = ""
    declared: bool = False
    notes: tuple[Note, ...] = ()

    @property
    def stopped(self) -> tuple[int, ...]:
        """The places of the arms that were stopped."""
        return tuple(stop.arm for stop in self.stops)


class Running:
    """Touched from one event loop. Whoever changes it has to keep it: ``changed`` says so."""

    def __init__(
        self, experiment: Experiment, stops: Stops, state: State | None = None, *, declared: bool = False
    ) -> None:
        self.experiment = experiment
        self._stops = stops
        if state is None:
            now = time.time()
            share = experiment.ramp[0]
            stages = (weights(len(experiment.arms), share),)
            state = State(_version(0), now, share, stages, declared=declared, notes=(Note(now, _began(share)),))
        self.state = state
        self.evidence = Evidence(experiment)
        for stage in state.stages:
            self.evidence.begin(stage)
        self.arms: tuple[frozenset[str], ...] = tuple(frozenset() for _ in experiment.arms)
        """The deployments of each arm as the fleet is now, by id."""
        self.changed = True

    @property
    def runs(self) -> bool:
        """Whether it still sends requests anywhere."""
        return not self.state.ended

    @property
    def weights(self) -> tuple[float, ...]:
        """The arms' present weights."""
        return self.state.stages[-1]

    def place(self, deployments: Iterable[Deployment]) -> None:
        """Look which deployments each arm has now."""
        of_model = list(deployments)
        self.arms = tuple(
            frozenset(d.id for d in of_model if any(selects(selector, d) for selector in arm.deployments))
            for arm in self.experiment.arms
        )

    def draw(self, identity: str) -> Assigned:
        """Send a request to the arm that its unit belongs to."""
        experiment = self.experiment
        unit = hashlib.blake2b(f"{experiment.name}\0{identity}".encode(), digest_size=8).hexdigest()
        is_shadow = experiment.kind is Kind.SHADOW
        arm = 0 if is_shadow else assign(experiment.name, unit, self.weights)
        self.evidence.expose(arm, unit)
        self.changed = True
        return Assigned(
            self,
            self.evidence.stage,
            arm,
            unit,
            self.arms[arm],
            is_checked=is_drawn(f"{experiment.name} form", identity, experiment.checked),
            is_copied=is_shadow and is_drawn(experiment.name, identity, self.state.share),
        )

    def add(self, outcome: Outcome) -> None:
        """Take in what became of a request, and stop its arm where that is too much."""
        self.evidence.add(outcome)
        self.watch(outcome.arm)

    def watch(self, arm: int) -> None:
        """Stop an arm that its guardrails complain of; else go on with the ramp, where that goes on by itself."""
        self.changed = True
        if not arm or not self.runs or arm in self.state.stopped:
            return
        if complaint := self.evidence.complaint(arm):
            self._stop_arm(arm, complaint)
        elif (after := self.experiment.advance_after) is not None:
            new = self.evidence.stages[-1].seen[1:]
            if sum(seen.requests for seen in new) >= after and (share := self.next_share()) is not None:
                self.ramp(share)

    def next_share(self) -> float | None:
        """Return the share that comes after the present one, ``None`` at the end of the ramp."""
        return next((share for share in self.experiment.ramp if share > self.state.share), None)

    def ramp(self, share: float) -> None:
        """Give the new arms another share. Raises ``ValueError`` after ``MOST_STAGES`` changes."""
        if len(self.state.stages) >= MOST_STAGES:
            raise ValueError(f"its shares have been changed {MOST_STAGES - 1} times: stop it, and start another one")
        before = self.state.share
        self._reweigh(share, self.state.stops, f"{before:.0%} became {share:.0%}")

    def end(self, why: str) -> None:
        """End it: from now on requests go where they would without it."""
        if self.runs:
            self._renew(self.state, ended=why, note=why)
            logger.info("experiment %s has ended: %s", self.experiment.name, why)

    def adopt(self, state: State) -> None:
        """Take over what another gateway has decided."""
        for stage in state.stages[len(self.state.stages) :]:
            self.evidence.begin(stage)
        if self.state.stages != state.stages[: len(self.state.stages)]:
            self.evidence = Evidence(self.experiment)  # begun anew there
            for stage in state.stages:
                self.evidence.begin(stage)
        self.state = state
        self.changed = True

    def _stop_arm(self, arm: int, complaint: Complaint) -> None:
        name = self.experiment.arms[arm].name
        why = f"{name} was stopped: {complaint.text}"
        logger.warning("experiment %s: %s", self.experiment.name, why)
        self._stops.count(self.experiment.model, complaint.guardrail)
        stop = Stop(arm, complaint.guardrail, time.time(), self.evidence.judged(arm), complaint.text)
        stops = (*self.state.stops, stop)
        if len(stops) == len(self.experiment.arms) - 1 or len(self.state.stages) >= MOST_STAGES:
            self._renew(replace(self.state, stops=stops), ended=why, note=why)
        else:
            self._reweigh(self.state.share, stops, why)

    def _reweigh(self, share: float, stops: tuple[Stop, ...], note: str) -> None:
        stage = weights(len(self.experiment.arms), share, [stop.arm for stop in stops])
        self._renew(replace(self.state, share=share, stops=stops, stages=(*self.state.stages, stage)), note=note)
        self.evidence.begin(stage)
        logger.info("experiment %s: %s", self.experiment.name, note)

    def _renew(self, state: State, *, note: str, ended: str = "") -> None:
        notes = (*state.notes, Note(time.time(), note))[-MOST_NOTES:]
        self.state = replace(state, version=_version(state.version), ended=ended, notes=notes)
        self.changed = True


def _version(before: int) -> int:
    """A number above the one before, and above those of other gateways that came earlier by the clock: ms."""
    return max(before + 1, int(time.time() * 1000))


def _began(share: float) -> str:
    return f"began at {share:.0%}"
