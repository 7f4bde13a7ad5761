"""Whether a request can be done in time at all."""

from __future__ import annotations

from policies.types import Decision, Estimate, RequestFacts


def misses_deadline(decision: Decision, facts: RequestFacts) -> Estimate | None:
    """Return the best estimate when no candidate can meet the request's deadline, else ``None``.

    A candidate without an estimate might meet it, and so might any when there is no deadline.
    """
    if facts.deadline_s is None or not decision.candidates:
        return None
    best: Estimate | None = None
    for candidate in decision.candidates:
        estimate = candidate.estimate
        if estimate is None or estimate.total_s <= facts.deadline_s:
            return None
        if best is None or estimate.total_s < best.total_s:
            best = estimate
    return best
