"""The routing decision: which deployments may serve a request, in which order, and why.

    who may     pinned, selector, capability (``roster``); down, breaker, context; precision
    order       tier first (below), then the objective's cost, then id
                not measured: ready ones first, then precision, requests in flight, id
    kept        within the spread the deployment that holds the prefix, else the one used last, stays in front, but
                never before one that is faster in every respect

A tier is what makes a deployment come after all others, however fast it is: a hosted API; a prompt that may not fit
(estimated, so it is no rejection); an engine that asked to be left alone; no measurement; an answer that may not fit.

Precision, when the caller named none: among the deployments that can serve this request now, 16 bits and better serve,
and quantised ones that passed their quality regression. Only when none of these is up, the best of the others do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from policies.contention import NOBODY, Beside
from policies.predict import Predictor
from policies.reasons import UNREADY, Row, Tier, explain, explain_next
from policies.roster import Option, Plan, Roster, roster
from policies.types import (
    Candidate,
    Decision,
    Deployment,
    Health,
    LoadView,
    Objective,
    Operation,
    Rejection,
    RequestFacts,
)

_MARGIN = 0.1
"""Costs nearer than this (or than the spread, where that is less) do not move a model from where it is."""
_EQUAL_DIGITS = 9
"""Costs that differ by less than a nanosecond tie, and are ordered by id."""
_IDLE = LoadView()


@dataclass(frozen=True, slots=True)
class FleetView:
    """All that a decision is made from, at one moment.

    ``deployments`` are those of all models, since they slow each other; pass the same tuple until the fleet changes.
    ``loads`` are by deployment id (a missing one is idle), ``last_used`` gives a model's last deployment id,
    ``cost_to_others`` is what the objective latency counts of the delay that a choice adds to others.
    """

    deployments: tuple[Deployment, ...]
    loads: Mapping[str, LoadView]
    predictor: Predictor
    last_used: Mapping[str, str] = field(default_factory=dict)
    now: float = 0.0
    cost_to_others: float = 0.5


def route(facts: RequestFacts, fleet: FleetView) -> Decision:
    """Decide who serves a request. Pure: the same arguments give the same decision. An unknown model has no candidates
    and no rejections."""
    known = roster(fleet.deployments)
    plan = known.plan(facts)
    rejected = list(plan.rejected)
    admitted = _admit(facts, plan, fleet.loads, rejected)
    if not admitted:
        return Decision((), tuple(rejected), "none")
    rows = _rank(facts, fleet, known, admitted)
    head, rule = _choose(facts, rows, fleet.last_used.get(facts.model))
    rule, reason = explain(facts, rows, head, rule, rejected)
    candidates = [Candidate(rows[head].option.deployment, rows[head].estimate, reason)]
    candidates += [
        Candidate(row.option.deployment, row.estimate, explain_next(row)) for i, row in enumerate(rows) if i != head
    ]
    return Decision(tuple(candidates), tuple(rejected), rule)


def _admit(
    facts: RequestFacts, plan: Plan, loads: Mapping[str, LoadView], rejected: list[Rejection]
) -> list[tuple[Option, LoadView]]:
    """Return who can serve this now, and the loads, at the best precision that is up; add the others to ``rejected``.

    Better ones that are still loading stay: whether to wait for them is a matter of time.
    """
    least = facts.prompt_tokens if facts.counted else min(facts.prompt_tokens, facts.prompt_tokens_least)
    if facts.operation is not Operation.EMBEDDINGS:
        least += 1
    able: list[tuple[Option, LoadView]] = []
    mixed = False
    for option in plan.options:
        load = loads.get(option.id, _IDLE)
        if load.health is Health.DOWN:
            reason = f"down: {load.note}" if load.note else "down"
            rejected.append(Rejection(option.deployment, "down", reason))
        elif load.breaker_open:
            rejected.append(Rejection(option.deployment, "breaker", "failed repeatedly and is being left alone"))
        elif least > option.context:
            rejected.append(Rejection(option.deployment, "context", _too_long(facts, option.context)))
        else:
            able.append((option, load))
            mixed = mixed or option.grade > 0
    return _admit_precision(able, rejected) if mixed else able


def _admit_precision(able: list[tuple[Option, LoadView]], rejected: list[Rejection]) -> list[tuple[Option, LoadView]]:
    local = [(option, load) for option, load in able if not option.deployment.hosted]
    up = [option for option, load in local if load.health is Health.UP] or [option for option, _ in local]
    serving = min(up, key=lambda option: option.grade)
    for option, _ in able:
        if option.grade > serving.grade:
            rejected.append(Rejection(option.deployment, "precision", _worse(option.deployment, serving.deployment)))
    return [(option, load) for option, load in able if option.grade <= serving.grade]


def _rank(facts: RequestFacts, fleet: FleetView, known: Roster, admitted: list[tuple[Option, LoadView]]) -> list[Row]:
    """Return the admitted in the order of tier and cost."""
    predictor, now = fleet.predictor, fleet.now
    around = _Neighbourhood(known, fleet) if known.shared else None
    prompt = facts.prompt_tokens
    generates = facts.operation is not Operation.EMBEDDINGS
    whole = prompt + (facts.max_output or facts.expected_output) if generates else prompt
    decode, others = _weights(facts.objective, fleet.cost_to_others)
    rows = []
    for option, load in admitted:
        deployment = option.deployment
        beside = NOBODY if around is None or option.area < 0 else around.beside(option)
        estimate = predictor.estimate(facts, deployment, load, now, beside)
        tier = 0
        if whole > option.context:
            tier = Tier.MAY_NOT_FIT if prompt + generates > option.context else Tier.CUT
        if load.retry_after_s > 0.0:
            tier |= Tier.LEFT_ALONE
        if deployment.hosted:
            tier |= Tier.HOSTED
        if estimate is None:
            late = UNREADY if load.health is Health.LOADING or not load.resident else 0.0
            cost = late - deployment.precision.rank
            rows.append(Row(tier | Tier.UNMEASURED, cost, load.inflight, option.id, option, load, None))
        else:
            cost = estimate.queue_s + estimate.load_s + estimate.prefill_s
            cost += decode * estimate.decode_s + others * estimate.cost_to_others_s
            rows.append(Row(tier, round(cost, _EQUAL_DIGITS), 0, option.id, option, load, estimate))
    rows.sort()
    return rows


def _weights(objective: Objective, cost_to_others: float) -> tuple[float, float]:
    """Return what a second of decode and a second of others' delay count, where one until the first token counts 1."""
    if objective is Objective.TTFT:
        return 0.0, 0.0
    return 1.0, cost_to_others if objective is Objective.LATENCY else 1.0


def _choose(facts: RequestFacts, rows: list[Row], last_used: str | None) -> tuple[int, str]:
    """Return the place of the one to be tried first, and the rule that put it there."""
    best = rows[0]
    if facts.pinned:
        return 0, "pinned"
    if best.estimate is None:
        return 0, "unmeasured"
    if len(rows) == 1:
        return 0, "only"
    peers = [row for row in rows if row.tier == best.tier]
    held = max(row.load.cached_tokens for row in peers)
    if held:
        rule, place = "prefix", next(i for i, row in enumerate(peers) if row.load.cached_tokens == held)
    else:
        rule, place = "last-used", next((i for i, row in enumerate(peers) if row.id == last_used), 0)
    near = rows[place].cost <= best.cost * (1.0 + min(_MARGIN, best.estimate.spread))
    return (place, rule) if place and near and _stands(rows, place) else (0, "fastest")


def _stands(rows: list[Row], place: int) -> bool:
    """Return whether nobody before that place is faster in every respect."""
    kept = rows[place].estimate
    assert kept is not None
    for row in rows[:place]:
        other = row.estimate
        if (
            other is not None
            and other.ttft_s < kept.ttft_s
            and other.total_s < kept.total_s
            and other.cost_to_others_s <= kept.cost_to_others_s
        ):
            return False
    return True


class _Neighbourhood:
    """What runs on each set of devices at this moment, summed once for all options."""

    __slots__ = ("_overlaps", "_sums", "_works")

    def __init__(self, known: Roster, fleet: FleetView) -> None:
        self._overlaps = known.overlaps
        self._works: dict[str, Beside] = {}
        self._sums: dict[int, list[float]] = {}
        loads, predictor, now = fleet.loads, fleet.predictor, fleet.now
        for deployment, area in known.shared:
            load = loads.get(deployment.id, _IDLE)
            if not load.inflight and not load.foreign_running and not load.foreign_waiting:
                continue
            work = predictor.work(deployment, load, now)
            self._works[deployment.id] = work
            for i in self._overlaps[area]:
                sums = self._sums.setdefault(i, [0.0, 0.0, 0.0, 0.0, 0.0])
                sums[0] += work.decoding
                sums[1] += work.prefilling
                sums[2] += work.decode_s
                sums[3] += work.prefill_s
                sums[4] += 1.0

    def beside(self, option: Option) -> Beside:
        """Return what the other deployments on an option's hardware do."""
        sums = self._sums.get(option.area)
        if sums is None:
            return NOBODY
        decoding, prefilling, decode_s, prefill_s, busy = sums
        own = self._works.get(option.id)
        if own is None:
            return Beside(decoding, prefilling, decode_s, prefill_s)
        if busy == 1.0:
            return NOBODY
        return Beside(
            max(0.0, decoding - own.decoding),
            max(0.0, prefilling - own.prefilling),
            max(0.0, decode_s - own.decode_s),
            max(0.0, prefill_s - own.prefill_s),
        )


def _too_long(facts: RequestFacts, context: int) -> str:
    length = f"{facts.prompt_tokens} tokens" if facts.counted else f"at least {facts.prompt_tokens_least} tokens"
    return f"the prompt has {length}, its context is {context}"


def _worse(deployment: Deployment, serving: Deployment) -> str:
    serves = f"{serving.id} serves with {serving.precision}"
    runs = "its precision is unknown" if deployment.precision.bits == 0 else f"runs {deployment.precision}"
    return f"{runs} (quality {deployment.quality}) and {serves}; ask for it by @{deployment.id}"
