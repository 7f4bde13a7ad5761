"""What goes on: places, each deployment's load and its speeds of the last minute, the last decisions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from gateway.requests.recent import Finished
from gateway.requests.report import request_summary
from gateway.requests.store import Wanted
from policies.diagnosis.case import Ended
from policies.types import Deployment

if TYPE_CHECKING:
    from gateway.exchange import Exchange
    from gateway.house import House

RECENT_S = 60.0
_LAST = 10


def places(house: House) -> dict[str, Any]:
    """Return how many requests run and wait, and what the cache has done. ``at`` is seconds since the epoch."""
    admission, limits = house.admission, house.settings.limits
    return {
        "at": round(time.time(), 3),
        "running": admission.running,
        "places": limits.max_concurrent,
        "waiting": admission.waiting,
        "queue": limits.queue,
        "cache": house.caching.stores.statistics.total() if house.caching is not None else None,
    }


async def what_goes_on(house: House) -> dict[str, Any]:
    """Return it. ``seconds`` is the time that the speeds are about: shorter where more has ended than is remembered.

    The last decisions come from the log of requests, with what was found of each; none where there is no log.
    Raises ``StoreError``.
    """
    here = places(house)
    recent, reaches_back = house.recent.since(here["at"] - RECENT_S)
    covered_s = RECENT_S if reaches_back else max(1.0, here["at"] - recent[0].at)
    running = list(house.running.values())
    last = await house.requests.select(Wanted(_LAST)) if house.requests is not None else []
    return {
        **here,
        "seconds": round(covered_s, 1),
        "deployments": [_deployment(house, each, recent, running, covered_s) for each in house.fleet.deployments],
        "last": [request_summary(case) for _, case in last],
    }


def _deployment(
    house: House, deployment: Deployment, recent: Sequence[Finished], running: Sequence[Exchange], covered_s: float
) -> dict[str, Any]:
    fleet = house.fleet
    served = [each for each in recent if each.attempts and each.deployment == deployment.id]
    runs = [
        each for each in running if each.tries and each.deployment is not None and each.deployment.id == deployment.id
    ]
    outcomes = [each.tries[-1].outcome for each in runs]
    firsts = [each.ttft_s for each in served if each.ttft_s is not None]
    speeds = [each.decode_per_s for each in served if each.decode_per_s is not None]
    speeds += [1.0 / tpot_s for each in outcomes if each is not None and (tpot_s := each.tpot_s)]
    written = sum(each.output_tokens or 0 for each in served) + sum(
        each.written for each in outcomes if each is not None
    )
    return {
        "id": deployment.id,
        "model": deployment.model,
        "engine": deployment.engine,
        "precision": deployment.precision,
        "state": "up" if fleet.serves(deployment) else fleet.health_of(deployment),
        "slots": deployment.slots,
        "inflight": fleet.inflight_on(deployment),
        "until_first_token": sum(each.first_token_at is None for each in runs),
        "requests": len(served),
        "failed": sum(each.ended == Ended.FAILED for each in served),
        "ttft_s": round(median(firsts), 4) if firsts else None,
        "output_tokens_per_s": round(written / covered_s, 1),
        "decode_tokens_per_s": round(median(speeds), 1) if speeds else None,
    }
