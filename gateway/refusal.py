"""Why nobody answered, as one error: no deployment may, none could, or Paceline itself stops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from adapters.errors import Busy, EngineError, Loading, Rejected
from gateway.errors import ApiError, from_engine_error, no_deployment, no_such_model
from gateway.exchange import predicted
from policies.types import Candidate, Decision, Estimate, RequestFacts

PASSING = frozenset({"down", "breaker"})
"""The rejection codes that mend themselves: such a request may be sent again."""


def no_candidate(facts: RequestFacts, decision: Decision, known: Iterable[str]) -> ApiError:
    """The answer to a request that routing left without a candidate: 404, 400 or 503, with each one's reason."""
    if not decision.rejected:
        return no_such_model(facts.model, known)
    return no_deployment(facts.model, decision, PASSING)


TOO_SLOW_RETRY_S = 60.0
"""When to come back although nothing but the request itself makes it late: speeds drift, deployments come."""


def too_late(facts: RequestFacts, best: Candidate, alone: Estimate | None) -> ApiError:
    """The answer to a request that no candidate can finish by its deadline. ``best`` would come nearest to that;
    ``alone`` is what it would need with nothing else there.

    Where the others are what makes it late, ``Retry-After`` is when it would fit: they owe less by a second each
    second.
    """
    estimate, deadline_s = best.estimate, facts.deadline_s
    assert estimate is not None
    assert deadline_s is not None
    waits = alone is not None and alone.total_s <= deadline_s
    name = best.deployment.id
    if alone is not None and waits:
        cause = "loading its model and " if estimate.load_s else ""
        why = f"{estimate.total_s - alone.total_s:.2f} s of it for {cause}other requests"
    else:
        why = "even with nothing else running"
    return ApiError(
        503,
        f"No deployment of {facts.model!r} can finish this within the {max(0.0, deadline_s):.2f} s that are left: "
        f"{name}, the nearest to it, would take about {estimate.total_s:.2f} s, {why}.",
        param="x-paceline-deadline-ms",
        code="deadline",
        headers=predicted(estimate),
        retry_after_s=estimate.total_s - deadline_s if waits else TOO_SLOW_RETRY_S,
        details={
            "estimate": {
                "deployment": name,
                "ttft_ms": round(estimate.ttft_s * 1000),
                "total_ms": round(estimate.total_s * 1000),
            }
        },
    )


def all_failed(failures: Sequence[EngineError]) -> ApiError:
    """The answer when every candidate that was tried failed, in the order of ``failures``.

    When all refused the request itself, it is one 400 that lists each; when there is just one, its own meaning stays.
    A passing state (busy, loading) is preferred over a fault, since it tells the client when to come back.
    """
    if len(failures) == 1:
        return from_engine_error(failures[0])
    each = "; ".join(f"{error.engine or 'engine'}: {error.message}" for error in failures)
    rejections = [error for error in failures if isinstance(error, Rejected)]
    if len(rejections) == len(failures):
        first = rejections[0]
        return ApiError(
            first.status, f"No deployment can serve this request. {each}", param=first.param, code=first.code
        )
    passing = [error for error in failures if isinstance(error, Busy | Loading)]
    faults = [error for error in failures if not isinstance(error, Rejected)]
    told = from_engine_error((passing or faults)[-1])
    return ApiError(
        told.status,
        f"{len(failures)} deployments were tried. {each}",
        type_=told.type,
        code=told.code,
        headers=told.headers,
    )


def stopping() -> ApiError:
    """The answer to what still runs when Paceline's time to stop is over."""
    return ApiError(503, "Paceline is being stopped", code="stopping", retry_after_s=5.0)
