"""The order of those who may serve: by tier, then by what a request costs there and what it costs others."""

from __future__ import annotations

from math import inf

from policies.contention import NOBODY
from policies.neighbourhood import Neighbourhood
from policies.reasons import UNREADY, Row, Tier
from policies.roster import Option, Roster
from policies.types import IDLE, NO_COMPANY, Health, LoadView, Objective, Operation, RequestFacts, Usual
from policies.view import FleetView

_TIE_S = 1e-9
"""Costs that differ by less than a nanosecond tie, and are ordered by id."""
_EMBEDDINGS = Operation.EMBEDDINGS


def rank(facts: RequestFacts, fleet: FleetView, known: Roster, admitted: list[tuple[Option, LoadView]]) -> list[Row]:
    """Return the admitted in the order of tier and cost."""
    predictor, now = fleet.predictor, fleet.now
    around = Neighbourhood(known, fleet, facts.prompt_tokens) if known.shared and fleet.loads else None
    prompt = facts.prompt_tokens
    generates = facts.operation is not _EMBEDDINGS
    output = facts.expected_output if generates else 0
    needed = prompt + (facts.max_output or output) if output else prompt
    first_token = prompt + 1 if output else prompt
    decode, others = _weights(facts.objective, fleet.cost_to_others)
    handicaps = (1.0, *(1.0 / (1.0 - margin) for margin in fleet.margins))
    deadline_s = facts.deadline_s
    usual_of = fleet.usual
    rows = []
    for option, load in admitted:
        own, beside = None, NOBODY
        if around is not None and option.area >= 0:
            own, beside = around.of(option)
        usual = usual_of.get(option.id, NO_COMPANY)
        estimate = (
            predictor.alone(option.deployment, prompt, output, now, usual)
            if load is IDLE and beside is NOBODY
            else predictor.estimate(facts, option.deployment, load, now, beside, own, usual)
        )
        tier = Tier.HOSTED if option.hosted else 0
        if needed > option.context:
            tier |= Tier.MAY_NOT_FIT if first_token > option.context else Tier.CUT
        if load.retry_after_s > 0.0:
            tier |= Tier.LEFT_ALONE
        if estimate is None:
            late = UNREADY if load.health is Health.LOADING or not load.resident else 0.0
            cost = late - option.deployment.precision.rank
            rows.append(Row(tier | Tier.UNMEASURED, cost, load.inflight, option.id, option, load, None))
            continue
        cost = estimate.queue_s + estimate.load_s + estimate.prefill_s
        if deadline_s is not None and cost + estimate.decode_s > deadline_s:
            tier |= Tier.LATE
        cost += decode * (estimate.decode_s + estimate.cost_to_next_s) + others * estimate.cost_to_others_s
        cost *= handicaps[option.step]
        rows.append(Row(tier, int(cost / _TIE_S) * _TIE_S, 0, option.id, option, load, estimate))
    if facts.further and generates:
        rows = _with_later(facts, fleet, rows)
    rows.sort()
    return rows


def _with_later(facts: RequestFacts, fleet: FleetView, rows: list[Row]) -> list[Row]:
    """Add to each row's cost what the further requests with the same beginning will take, once it has been there.

    They will go to the best place that has their beginning in its cache: this one then, or one that has it already.
    So moving to a better place is worth reading a prompt anew, when many turns will profit, and a detour costs nothing.
    """
    held = max(row.load.cached_tokens for row in rows)
    if not held:
        return rows
    later_s, now = fleet.predictor.later_s, fleet.now
    known: dict[tuple[str, int | None, Usual], float] = {}
    later = []
    for row in rows:
        if row.estimate is None:
            later.append(inf)
            continue
        deployment = row.option.deployment
        usual = fleet.usual.get(row.id, NO_COMPANY)
        alike = deployment.fingerprint, deployment.slots, usual
        if alike not in known:  # replicas of one kind on one machine answer alike
            known[alike] = later_s(facts, deployment, held, usual, now)
        later.append(known[alike])
    there = min(s if 2 * row.load.cached_tokens > held else inf for s, row in zip(later, rows, strict=True))
    return [
        row if row.estimate is None else Row(row.tier, row.cost + facts.further * min(there, s), *row[2:])
        for s, row in zip(later, rows, strict=True)
    ]


def _weights(objective: Objective, cost_to_others: float) -> tuple[float, float]:
    """Return what a second of decode and a second of others' delay count, where one until the first token counts 1."""
    if objective is Objective.TTFT:
        return 0.0, 0.0
    return 1.0, cost_to_others if objective is Objective.LATENCY else 1.0
