"""Why nobody answered, as one error: no deployment may, none could, or Paceline itself stops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from adapters.errors import Busy, EngineError, Loading, Rejected
from gateway.errors import ApiError, from_engine_error, no_deployment, no_such_model
from policies.types import Decision, RequestFacts

PASSING = frozenset({"down", "breaker"})
"""The rejection codes that mend themselves: such a request may be sent again."""


def no_candidate(facts: RequestFacts, decision: Decision, known: Iterable[str]) -> ApiError:
    """The answer to a request that routing left without a candidate: 404, 400 or 503, with each one's reason."""
    if not decision.rejected:
        return no_such_model(facts.model, known)
    return no_deployment(facts.model, decision, PASSING)


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
