"""The routing decision: which deployments may serve a request, in which order, and why.

    who may     pinned, selector, capability (``roster``); down, breaker, context; precision
    order       tier first (below), then the objective's cost, then id
                not measured: ready ones first, then precision, requests in flight, id
    kept        within the spread the deployment that holds the prefix, else a stable one, else the one used last, stays
                in front, but never before one that is faster in every respect (a stable one may), or of a better
                precision

A tier is what makes a deployment come after all others, however fast it is: a hosted API; a prompt that may not fit
(estimated, so it is no rejection); an engine that asked to be left alone; no measurement; an answer that may not fit;
a deadline that it is predicted to miss.

Precision, when the caller named none: among the deployments that can serve this request now, 16 bits and better serve,
and quantised ones that passed their quality regression, when they are predicted to be faster by a margin. Only when
none of these is up, the best of the others do.
"""

from __future__ import annotations

from collections.abc import Mapping

from policies.candidates import Ranked
from policies.rank import rank
from policies.reasons import Row, explain
from policies.roster import Option, Plan, roster
from policies.types import IDLE, Candidate, Decision, Deployment, Health, LoadView, Operation, Rejection, RequestFacts
from policies.view import FleetView

_MARGIN = 0.05
"""Costs nearer than this (or than the spread, where that is less) do not move a model from where it is."""
_DOWN, _EMBEDDINGS = Health.DOWN, Operation.EMBEDDINGS


def route(facts: RequestFacts, fleet: FleetView) -> Decision:
    """Decide who serves a request. Pure: the same arguments give the same decision. An unknown model has no candidates
    and no rejections."""
    known = roster(fleet.deployments)
    plan = known.plan(facts)
    rejected = list(plan.rejected)
    admitted = _admit(facts, plan, fleet.loads, rejected)
    if not admitted:
        return Decision((), tuple(rejected), "none")
    rows = rank(facts, fleet, known, admitted)
    head, rule = _choose(facts, rows, fleet.last_used.get(facts.model))
    rule, reason = explain(facts, rows, head, rule, rejected)
    chosen = rows[head]
    first = Candidate(chosen.option.deployment, chosen.estimate, reason, chosen.load.cached_tokens)
    return Decision(Ranked(first, rows, head), tuple(rejected), rule)


def _admit(
    facts: RequestFacts, plan: Plan, loads: Mapping[str, LoadView], rejected: list[Rejection]
) -> list[tuple[Option, LoadView]]:
    """Return who can serve this now, and the loads, at the best precision that is up; add the others to ``rejected``.

    Better ones that are still loading stay: whether to wait for them is a matter of time.
    """
    least = facts.prompt_tokens if facts.counted else min(facts.prompt_tokens, facts.prompt_tokens_least)
    if facts.operation is not _EMBEDDINGS:
        least += 1
    able: list[tuple[Option, LoadView]] = []
    mixed = False
    for option in plan.options:
        load = loads.get(option.id, IDLE)
        if load is not IDLE:
            if load.health is _DOWN:
                reason = f"down: {load.note}" if load.note else "down"
                rejected.append(Rejection(option.deployment, "down", reason))
                continue
            if load.breaker_open:
                rejected.append(Rejection(option.deployment, "breaker", "failed repeatedly and is being left alone"))
                continue
        if least > option.context:
            rejected.append(Rejection(option.deployment, "context", _too_long(facts, option.context)))
            continue
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


def _choose(facts: RequestFacts, rows: list[Row], last_used: str | None) -> tuple[int, str]:
    """Return the place of the one to be tried first, and the rule that put it there."""
    best = rows[0]
    if facts.pinned:
        return 0, "pinned"
    if best.estimate is None:
        return 0, "unmeasured"
    if len(rows) == 1:
        return 0, "only"
    ties = _ties(rows, best.cost + min(_MARGIN, best.estimate.spread) * min(best.cost, best.estimate.total_s))
    return _stays(rows, ties, last_used) if len(ties) > 1 else (0, "fastest")


def _ties(rows: list[Row], limit: float) -> list[int]:
    """Return the places of those that cost the same as the first, as far as can be told, at no worse precision."""
    tier, step = rows[0].tier, rows[0].option.step
    places = []
    for i, row in enumerate(rows):
        if row.tier != tier or row.cost > limit:
            break
        if row.option.step <= step:
            places.append(i)
    return places


def _stays(rows: list[Row], ties: list[int], last_used: str | None) -> tuple[int, str]:
    """Return which of those that tie comes first, and why."""
    held = max(rows[i].load.cached_tokens for i in ties)
    if held:
        place = next(i for i in ties if rows[i].load.cached_tokens == held)
        return (place, "prefix") if place and _stands(rows, place) else (0, "fastest")
    stable = [i for i in ties if rows[i].option.deployment.stable]
    place = next((i for i in stable or ties if rows[i].id == last_used), 0)
    if place and _stands(rows, place):
        return place, "last-used"
    return (stable[0], "stable") if stable and stable[0] else (0, "fastest")


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


def _too_long(facts: RequestFacts, context: int) -> str:
    length = f"{facts.prompt_tokens} tokens" if facts.counted else f"at least {facts.prompt_tokens_least} tokens"
    return f"the prompt has {length}, its context is {context}"


def _worse(deployment: Deployment, serving: Deployment) -> str:
    serves = f"{serving.id} serves with {serving.precision}"
    runs = "its precision is unknown" if deployment.precision.bits == 0 else f"runs {deployment.precision}"
    return f"{runs} (quality {deployment.quality}) and {serves}; ask for it by @{deployment.id}"
