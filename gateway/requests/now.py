"""What goes on: places, each deployment's load and its speeds of the last minute, the last decisions."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Any

from gateway.requests.report import request_summary
from gateway.requests.store import Wanted
from policies.diagnosis.case import Case, Ended
from policies.types import Deployment

if TYPE_CHECKING:
    from gateway.house import House
    from gateway.requests.log import RequestLog

RECENT_S = 60.0
_MOST = 500
"""Requests that are looked at: with more in a minute, the newest of them."""
_LAST = 10


async def what_goes_on(house: House, log: RequestLog) -> dict[str, Any]:
    """Return it. ``seconds`` is the time that the speeds are about. Raises ``StoreError``."""
    now = time.time()
    recent = [case for _, case in await log.select(Wanted(_MOST, since=now - RECENT_S))]
    covered_s = max(1.0, now - recent[-1].at) if len(recent) == _MOST else RECENT_S
    live, admission = log.live(), house.admission
    return {
        "at": round(now, 3),
        "seconds": round(covered_s, 1),
        "running": admission.running,
        "places": house.settings.limits.max_concurrent,
        "waiting": admission.waiting,
        "cache": house.caching.stores.statistics.total() if house.caching is not None else None,
        "deployments": [_deployment(house, each, recent, live, covered_s) for each in house.fleet.deployments],
        "last": [request_summary(case) for case in recent[:_LAST]],
    }


def _deployment(
    house: House, deployment: Deployment, recent: list[Case], live: list[Case], covered_s: float
) -> dict[str, Any]:
    fleet = house.fleet
    served = [case for case in recent if case.tries and case.deployment == deployment.id]
    runs = [case for case in live if case.tries and case.deployment == deployment.id]
    firsts = [case.ttft_s for case in served if case.ttft_s is not None]
    written = sum(case.output_tokens or 0 for case in (*served, *runs))
    return {
        "id": deployment.id,
        "model": deployment.model,
        "engine": deployment.engine,
        "precision": deployment.precision,
        "state": "up" if fleet.serves(deployment) else fleet.health_of(deployment),
        "slots": deployment.slots,
        "inflight": fleet.inflight_on(deployment),
        "until_first_token": sum(case.ttft_s is None for case in runs),
        "requests": len(served),
        "failed": sum(case.ended is Ended.FAILED for case in served),
        "ttft_s": round(median(firsts), 4) if firsts else None,
        "output_tokens_per_s": round(written / covered_s, 1),
        "decode_tokens_per_s": _decode_speed([*served, *runs]),
    }


def _decode_speed(cases: list[Case]) -> float | None:
    """Return the median of the tokens a second that single requests were given."""
    speeds = [
        (written - 1) / case.stages.decode_s
        for case in cases
        if (written := case.output_tokens or 0) > 1 and case.stages.decode_s > 0.0
    ]
    return round(median(speeds), 1) if speeds else None
