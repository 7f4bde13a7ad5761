"""What became of a request that an experiment has sent somewhere."""

from __future__ import annotations

from adapters.errors import Rejected
from gateway.exchange import Exchange
from gateway.experiments.assigned import Assigned
from policies.experiment_metrics import Outcome


def outcome_of(exchange: Exchange, assigned: Assigned) -> Outcome | None:
    """Return it, or ``None`` for one that says nothing of the arm: answered from the cache or by another's call,
    refused before any engine was asked, or wrong in itself.

    A request that the arm could not serve, so that another one did, has failed there.
    """
    if not exchange.tries:
        return None
    last = exchange.tries[-1]
    deployment = last.candidate.deployment
    if assigned.running.experiment.arms[assigned.arm].deployments and deployment.id not in assigned.only:
        return Outcome(assigned.stage, assigned.arm, assigned.unit, failed=True)
    if exchange.ended == "failed":
        if isinstance(last.error, Rejected):
            return None
        return Outcome(assigned.stage, assigned.arm, assigned.unit, failed=True)
    shown, done = last.outcome, exchange.ended == "done"
    tpot_s = None if shown is None else shown.tpot_s
    first, total_s = exchange.first_token_at, None
    if done:
        total_s = max(0.0, exchange.ended_at - exchange.routed_at - exchange.client_s)
    return Outcome(
        assigned.stage,
        assigned.arm,
        assigned.unit,
        cancelled=not done,
        ttft_s=None if first is None else first - exchange.routed_at,
        decode_per_s=1.0 / tpot_s if tpot_s else None,
        total_s=total_s,
        output_tokens=shown.output_tokens if shown is not None and done else None,
    )
