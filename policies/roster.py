"""A fleet's deployments, prepared for routing: what depends on the fleet alone is worked out once per change of it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from policies.selector import asks_for_precision, mismatch, selects
from policies.types import Capability, Deployment, Operation, Precision, Quality, Rejection, RequestFacts

_MOST_PLANS = 256
_MOST_ROSTERS = 4

Kind = tuple[str, str, Operation, frozenset[Capability], str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Option:
    """A deployment that may serve a kind of request.

    ``grade`` orders precisions for callers who left the choice to us: 0 may serve, higher ones only when there is
    nothing lower. ``step`` is how far below 16 bits it serves such callers: 0 for 16 bits and better, 1 for 8 bits, 2
    for fewer; it has to be faster by a margin. ``area`` is its place in ``Roster.overlaps``, −1 when it shares its
    hardware with no other deployment.
    """

    deployment: Deployment
    id: str
    hosted: bool
    context: int
    grade: int
    step: int
    area: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What the fleet alone says about a kind of request: who may serve it, who may not, and for which reason."""

    options: tuple[Option, ...]
    rejected: tuple[Rejection, ...]


UNLIMITED = 1 << 60


class Roster:
    """Deployments by model and hardware, with a bounded memory of plans."""

    def __init__(self, deployments: tuple[Deployment, ...]) -> None:
        self.deployments = deployments
        self._by_model: dict[str, list[Deployment]] = {}
        for deployment in sorted(deployments, key=lambda d: d.id):
            self._by_model.setdefault(deployment.model, []).append(deployment)
        self._area_of: dict[str, int] = {}
        self.overlaps: tuple[tuple[int, ...], ...] = ()
        """Per area, the areas that have a device in common with it: its own and others."""
        self.shared: dict[str, tuple[Deployment, int]] = {}
        """Deployments that others share hardware with, each with its area, by id."""
        self._find_areas()
        self._plans: OrderedDict[Kind, Plan] = OrderedDict()

    def _find_areas(self) -> None:
        members: dict[frozenset[str], list[Deployment]] = {}
        for deployment in self.deployments:
            if deployment.hardware.devices:
                members.setdefault(deployment.hardware.devices, []).append(deployment)
        areas = sorted(members, key=sorted)
        overlaps = [tuple(j for j, there in enumerate(areas) if not here.isdisjoint(there)) for here in areas]
        for i, here in enumerate(areas):
            if sum(len(members[areas[j]]) for j in overlaps[i]) > 1:
                for deployment in members[here]:
                    self._area_of[deployment.id] = i
                    self.shared[deployment.id] = deployment, i
        self.overlaps = tuple(overlaps)

    def plan(self, facts: RequestFacts) -> Plan:
        """Return who may serve such requests as far as the fleet alone decides that."""
        kind = (facts.model, facts.selector, facts.operation, facts.needs, facts.pinned, facts.only)
        plan = self._plans.get(kind)
        if plan is None:
            plan = self._plans[kind] = self._make_plan(facts)
            if len(self._plans) > _MOST_PLANS:
                self._plans.popitem(last=False)
        return plan

    def _make_plan(self, facts: RequestFacts) -> Plan:
        options, rejected = [], []
        for deployment in self._by_model.get(facts.model, ()):
            rejection = _reject(facts, deployment)
            if rejection is not None:
                rejected.append(rejection)
                continue
            asked_for = bool(facts.pinned) or asks_for_precision(facts.selector, deployment)
            ours_to_choose = not asked_for and not deployment.hosted
            options.append(
                Option(
                    deployment,
                    deployment.id,
                    deployment.hosted,
                    UNLIMITED if deployment.context is None else deployment.context,
                    0 if asked_for else precision_grade(deployment),
                    _step(deployment.precision) if ours_to_choose else 0,
                    self._area_of.get(deployment.id, -1),
                )
            )
        return Plan(tuple(options), tuple(rejected))


def roster(deployments: tuple[Deployment, ...]) -> Roster:
    """Return the roster of this very tuple; pass the same object until the fleet changes, and it is made once."""
    known = _rosters.get(id(deployments))
    if known is None:
        known = _rosters[id(deployments)] = Roster(deployments)
        if len(_rosters) > _MOST_ROSTERS:
            _rosters.popitem(last=False)
    return known


_rosters: OrderedDict[int, Roster] = OrderedDict()
"""By identity; each roster holds its tuple, so that the identity cannot be another's."""


def precision_grade(deployment: Deployment) -> int:
    """Return 0 when a deployment may serve whoever asked for no precision, else how late it comes.

    0: 16 bits or more, or a quantised one that passed its quality regression (or is its baseline); hosted APIs, which
    have an order of their own. 1: 8 bits. 2: 4 bits. 3: unknown. 4 to 6: the same, failed its regression.
    """
    bits = deployment.precision.bits
    if bits >= 16 or deployment.hosted or deployment.quality in (Quality.PASSED, Quality.BASELINE):
        return 0
    grade = 3 if deployment.precision is Precision.UNKNOWN else 1 if bits >= 8 else 2
    return grade + 3 if deployment.quality is Quality.FAILED else grade


def _step(precision: Precision) -> int:
    return 0 if precision.bits >= 16 else 1 if precision.bits >= 8 else 2


def _reject(facts: RequestFacts, deployment: Deployment) -> Rejection | None:
    if facts.pinned and facts.pinned != deployment.id:
        return Rejection(deployment, "pinned", f"the caller pinned {facts.pinned}")
    if facts.only and deployment.id not in facts.only:
        return Rejection(deployment, "experiment", "an experiment sends this request elsewhere")
    if not selects(facts.selector, deployment):
        return Rejection(deployment, "selector", mismatch(facts.selector, deployment))
    missing = (facts.needs | {facts.operation.capability}) - deployment.capabilities
    if missing:
        return Rejection(deployment, "capability", f"cannot do {', '.join(sorted(missing))}")
    return None
