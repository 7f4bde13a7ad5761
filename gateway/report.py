"""What an operator is told: every deployment with its state and speeds, and why a route would be taken."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.errors import ApiError
from gateway.exchange import Wishes
from gateway.fleet import Fleet
from gateway.incoming import read_request
from gateway.refusal import no_candidate
from policies.types import Candidate, Deployment, Health, Objective, Operation, Quality


def fleet_report(fleet: Fleet) -> list[dict[str, Any]]:
    """Return one entry per deployment, and one for each engine that has not said yet what it serves."""
    entries = [_deployment(fleet, deployment) for deployment in fleet.deployments]
    entries += [
        {"id": engine.name, "endpoint": engine.name, "model": None, "state": engine.health, "note": engine.note}
        for engine in fleet.engines
        if not engine.deployments
    ]
    return entries


def _deployment(fleet: Fleet, deployment: Deployment) -> dict[str, Any]:
    engine = fleet.engine_of(deployment)
    described = engine.description
    models = () if described is None else described.models
    precision_from = next((m.precision_from for m in models if m.engine_model == deployment.engine_model), "nobody")
    return {
        "id": deployment.id,
        "model": deployment.model,
        "engine": deployment.engine,
        "engine_label": deployment.engine if described is None else described.label,
        "engine_version": deployment.engine_version,
        "endpoint": deployment.endpoint,
        "url": engine.source.url,
        "engine_model": deployment.engine_model,
        "precision": deployment.precision,
        "scheme": deployment.scheme,
        "precision_from": precision_from,
        "context": deployment.context,
        "slots": deployment.slots,
        "capabilities": sorted(deployment.capabilities),
        "quality": deployment.quality,
        "quality_why": fleet.quality_why(deployment),
        "stable": deployment.stable,
        "state": _state(fleet, deployment),
        "note": engine.note,
        "inflight": fleet.inflight_on(deployment),
        "measured": _measured(fleet, deployment),
        "predictions": _predictions(fleet, deployment),
        "peak_memory_bytes": engine.peak_bytes,
        "fingerprint": deployment.fingerprint,
        "hardware": deployment.hardware.description or deployment.hardware.host,
    }


def _state(fleet: Fleet, deployment: Deployment) -> str:
    health = fleet.health_of(deployment)
    if health is not Health.UP:
        return health
    if not fleet.serves(deployment):
        return "failing"
    return "up" if deployment.hosted or fleet.learned.predictor.knows(deployment.fingerprint) else "unmeasured"


def _measured(fleet: Fleet, deployment: Deployment) -> dict[str, Any] | None:
    """The last measurement: prefill speed and TTFT by prompt length, decode speed of the shortest prompt."""
    samples = [s for s in fleet.learned.samples(deployment.fingerprint) if s.prefill_s > 0]
    if not samples:
        return None
    shortest = min(samples, key=lambda sample: sample.prompt_tokens)
    return {
        "prefill_tokens_per_s": {str(s.prompt_tokens): round(s.prompt_tokens / s.prefill_s, 1) for s in samples},
        "ttft_s": {str(s.prompt_tokens): round(s.prefill_s, 4) for s in samples},
        "decode_tokens_per_s": round(1 / shortest.tpot_s, 1) if shortest.tpot_s > 0 else None,
    }


def _predictions(fleet: Fleet, deployment: Deployment) -> dict[str, Any] | None:
    """Whether the intervals held: of the last ``outcomes`` (200 at most) the share ``held``, 0.75 to 0.85 when all is
    well. ``spread`` is the present relative half-width of a request that finds nobody there."""
    predictor = fleet.learned.predictor
    profile = predictor.profile(deployment.fingerprint)
    if profile is None:
        return None
    coverage = predictor.coverage(deployment.fingerprint)
    return {
        "held": round(coverage.share, 3) if coverage.seen else None,
        "outcomes": coverage.seen,
        "spread": round(profile.usual_spread, 3),
        "outdated": predictor.drifted(deployment.fingerprint),
    }


def explanation(
    fleet: Fleet,
    model: str,
    prompt: str,
    max_tokens: int | None,
    objective: Objective | None,
    *,
    stream: bool,
) -> dict[str, Any]:
    """Return which deployment a prompt would go to and why; nothing is sent. Raises ``ApiError`` (404) for no model."""
    body: dict[str, object] = {"model": model, "messages": [{"role": "user", "content": prompt}], "stream": stream}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    facts = fleet.facts(read_request(Operation.CHAT, msgspec.json.encode(body)), Wishes(objective=objective))
    decision = fleet.route(facts)
    chosen = decision.chosen
    refusal: ApiError | None = None if chosen else no_candidate(facts, decision, fleet.models())
    if refusal is not None and refusal.status == 404:
        raise refusal
    return {
        "chosen": chosen.deployment.id if chosen else None,
        "rule": decision.rule,
        "reason": chosen.reason if chosen else str(decision),
        "prompt_tokens": facts.prompt_tokens,
        "expected_output": facts.expected_output,
        "candidates": [_candidate(candidate) for candidate in decision.candidates],
        "rejected": [
            {"deployment": rejection.deployment.id, "code": rejection.code, "reason": rejection.reason}
            for rejection in decision.rejected
        ],
        "precisions": [_precision(fleet, deployment) for deployment in fleet.deployments_of(facts.model)],
    }


def _precision(fleet: Fleet, deployment: Deployment) -> dict[str, Any]:
    return {
        "deployment": deployment.id,
        "precision": deployment.precision,
        "scheme": deployment.scheme,
        "quality": deployment.quality,
        "who": who_gets(deployment, fleet.quality_why(deployment)),
    }


def who_gets(deployment: Deployment, why: str) -> str:
    """Say in words which requests a deployment's precision may serve; ``why`` is the reason for its quality."""
    cause = f" ({why})" if why else ""
    if deployment.hosted:
        return "a hosted API: after all others"
    if deployment.precision.bits >= 16:
        return "16 bits or more: whoever names no precision"
    if deployment.quality in (Quality.PASSED, Quality.BASELINE):
        state = "passed" if deployment.quality is Quality.PASSED else "is the baseline of"
        return f"{state} the quality regression{cause}: whoever names no precision, when it is faster by a margin"
    if deployment.quality is Quality.FAILED:
        state = f"failed the quality regression{cause}"
    elif deployment.precision.bits == 0:
        state = "unknown precision, untested"
    else:
        state = f"untested{cause}, `paceline quality` tests it"
    return f"{state}: only who asks for it, or when nothing better can serve"


def _candidate(candidate: Candidate) -> dict[str, Any]:
    estimate = candidate.estimate
    entry: dict[str, Any] = {"deployment": candidate.deployment.id, "reason": candidate.reason}
    if estimate is not None:
        entry |= {
            "queue_s": round(estimate.queue_s, 4),
            "load_s": round(estimate.load_s, 4),
            "prefill_s": round(estimate.prefill_s, 4),
            "decode_s": round(estimate.decode_s, 4),
            "ttft_s": round(estimate.ttft_s, 4),
            "total_s": round(estimate.total_s, 4),
            "spread": round(estimate.spread, 3),
            "total_low_s": round(estimate.total_s * max(0.0, 1 - estimate.spread), 4),
            "total_high_s": round(estimate.total_s * (1 + estimate.spread), 4),
            "cost_to_others_s": round(estimate.cost_to_others_s, 4),
            "cost_to_next_s": round(estimate.cost_to_next_s, 4),
        }
    return entry
