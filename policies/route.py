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
from dataclasses import field

from policies.contention import NOBODY, Beside
from policies.predict import Predictor, within
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
from policies.value import value

_MARGIN = 0.1
"""Costs nearer than this (or than the spread, where that is less) do not move a model from where it is."""
_TIE_S = 1e-9
"""Costs that differ by less than a nanosecond tie, and are ordered by id."""
_DUST = 1e-9
"""What a sum may be off by after something was taken from it."""
_IDLE = LoadView()
_DOWN, _EMBEDDINGS = Health.DOWN, Operation.EMBEDDINGS


@value
class FleetView:
    """All that a decision is made from, at one moment.

    ``deployments`` are those of all models, since they slow each other; pass the same tuple until the fleet changes.
    ``loads`` are by deployment id; leave out those that are idle: it saves half of the decision. ``last_used`` gives a
    model's last deployment id, ``cost_to_others`` is what the objective latency counts of the delay that a choice adds
    to others. ``margins`` are how much faster 8 bits, and fewer, must be than 16 bits to serve who asked for no
    precision: 0.1 means by 10 %.
    """

    deployments: tuple[Deployment, ...]
    loads: Mapping[str, LoadView]
    predictor: Predictor
    last_used: Mapping[str, str] = field(default_factory=dict)
    now: float = 0.0
    cost_to_others: float = 0.5
    margins: tuple[float, float] = (0.1, 0.2)


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
        Candidate(row.option.deployment, row.estimate, explain_next(row) if row.tier else "next in line")
        for i, row in enumerate(rows)
        if i != head
    ]
    return Decision(tuple(candidates), tuple(rejected), rule)


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
        load = loads.get(option.id, _IDLE)
        if load is not _IDLE:
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


def _rank(facts: RequestFacts, fleet: FleetView, known: Roster, admitted: list[tuple[Option, LoadView]]) -> list[Row]:
    """Return the admitted in the order of tier and cost."""
    predictor, now = fleet.predictor, fleet.now
    around = _Neighbourhood(known, fleet, facts.prompt_tokens) if known.shared and fleet.loads else None
    prompt = facts.prompt_tokens
    output = 0 if facts.operation is _EMBEDDINGS else facts.expected_output
    needed = prompt + (facts.max_output or output) if output else prompt
    first_token = prompt + 1 if output else prompt
    decode, others = _weights(facts.objective, fleet.cost_to_others)
    handicaps = (1.0, *(1.0 / (1.0 - margin) for margin in fleet.margins))
    deadline_s = facts.deadline_s
    rows = []
    for option, load in admitted:
        own, beside = None, NOBODY
        if around is not None and option.area >= 0:
            own, beside = around.of(option)
        estimate = (
            predictor.alone(option.fingerprint, prompt, output, now)
            if load is _IDLE and beside is NOBODY
            else predictor.estimate(facts, option.deployment, load, now, beside, own)
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
        cost = (cost + decode * estimate.decode_s + others * estimate.cost_to_others_s) * handicaps[option.step]
        rows.append(Row(tier, int(cost / _TIE_S) * _TIE_S, 0, option.id, option, load, estimate))
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
    ties = _ties(rows, best.cost * (1.0 + min(_MARGIN, best.estimate.spread)))
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


class _Neighbourhood:
    """What runs on each set of devices at this moment, summed once for all options."""

    __slots__ = ("_sums", "_works")

    def __init__(self, known: Roster, fleet: FleetView, prompt_tokens: int) -> None:
        """``prompt_tokens`` of this request stand for the context of the others."""
        self._works: dict[str, tuple[Beside, Beside]] = {}
        """What runs and waits on each busy deployment, and the part of it that has a slot."""
        self._sums: dict[int, list[float]] = {}
        predictor, now = fleet.predictor, fleet.now
        shared, overlaps = known.shared, known.overlaps
        for id_, load in fleet.loads.items():
            if id_ not in shared or not (load.inflight or load.foreign_running or load.foreign_waiting):
                continue
            deployment, area = shared[id_]
            work = predictor.work(deployment, load, now, prompt_tokens)
            runs = work if deployment.slots is None else within(work, deployment.slots)
            self._works[id_] = work, runs
            decoding, prefilling, decode_s, prefill_s = runs
            for i in overlaps[area]:
                sums = self._sums.get(i)
                if sums is None:
                    self._sums[i] = [decoding, prefilling, decode_s, prefill_s, 1.0]
                    continue
                sums[0] += decoding
                sums[1] += prefilling
                sums[2] += decode_s
                sums[3] += prefill_s
                sums[4] += 1.0

    def of(self, option: Option) -> tuple[Beside, Beside]:
        """Return what an option's deployment does itself, and what the others on its hardware do."""
        sums = self._sums.get(option.area)
        if sums is None:
            return NOBODY, NOBODY
        decoding, prefilling, decode_s, prefill_s, busy = sums
        works = self._works.get(option.id)
        if works is None:
            return NOBODY, Beside(decoding, prefilling, decode_s, prefill_s)
        own, runs = works
        if busy == 1.0:
            return own, NOBODY
        decoding -= runs.decoding
        prefilling -= runs.prefilling
        decode_s -= runs.decode_s
        prefill_s -= runs.prefill_s
        return own, Beside(
            decoding if decoding > _DUST else 0.0,
            prefilling if prefilling > _DUST else 0.0,
            decode_s if decode_s > _DUST else 0.0,
            prefill_s if prefill_s > _DUST else 0.0,
        )


def _too_long(facts: RequestFacts, context: int) -> str:
    length = f"{facts.prompt_tokens} tokens" if facts.counted else f"at least {facts.prompt_tokens_least} tokens"
    return f"the prompt has {length}, its context is {context}"


def _worse(deployment: Deployment, serving: Deployment) -> str:
    serves = f"{serving.id} serves with {serving.precision}"
    runs = "its precision is unknown" if deployment.precision.bits == 0 else f"runs {deployment.precision}"
    return f"{runs} (quality {deployment.quality}) and {serves}; ask for it by @{deployment.id}"
