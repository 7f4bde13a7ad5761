"""Copies of requests to another arm, whose answers nobody sees.

A copy begins when the request itself has been answered, only where its engine has room and nobody's request runs on the
same machine, and ends at once when one comes. So it costs nobody anything; how many were left out is counted.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from adapters.errors import EngineError, Rejected
from gateway.exchange import Exchange
from gateway.experiments.assigned import Assigned
from gateway.experiments.checking import Checking
from gateway.fleet import Fleet
from measure.traffic import Disturbed
from policies.experiment_metrics import Outcome
from policies.types import Candidate, Deployment

logger = logging.getLogger("paceline.experiments")

MOST_AT_ONCE = 2
LIMIT_S = 300.0
"""How long a copy may take."""


class Shadow:
    """Owns the copies that run."""

    def __init__(self, fleet: Fleet, checking: Checking) -> None:
        self._fleet = fleet
        self._checking = checking
        self._copies: dict[asyncio.Task[None], str] = {}
        self.left_out = 0
        """Copies that were not made, or given up, since there was no room."""

    def offer(self, exchange: Exchange, assigned: Assigned) -> None:
        """Send a copy of an answered request to the second arm, if there is room."""
        candidate = self._room(exchange, assigned)
        if candidate is None:
            self.left_out += 1
            return
        work = self._copy(exchange, assigned, candidate.deployment)
        task = asyncio.get_running_loop().create_task(work, name="shadow")
        self._copies[task] = candidate.deployment.id
        task.add_done_callback(self._copies.pop)

    async def aclose(self) -> None:
        """Give up the copies that run."""
        tasks = tuple(self._copies)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _room(self, exchange: Exchange, assigned: Assigned) -> Candidate | None:
        """Return where a copy may go now."""
        only = assigned.running.arms[1]
        if not only or len(self._copies) >= MOST_AT_ONCE:
            return None
        facts = self._fleet.facts(exchange.incoming, exchange.wishes)
        for candidate in self._fleet.route(replace(facts, only=only)).candidates:
            deployment = candidate.deployment
            if (
                deployment.id in only
                and deployment.id not in self._copies.values()
                and self._fleet.is_idle(deployment.hardware)
            ):
                return candidate
        return None

    async def _copy(self, exchange: Exchange, assigned: Assigned, deployment: Deployment) -> None:
        traffic = self._fleet.traffic_on(deployment.hardware)
        try:
            async with asyncio.timeout(LIMIT_S):
                outcome, said = await traffic.give_way(self._ask(exchange, assigned, deployment))
        except (Disturbed, TimeoutError):
            self.left_out += 1
            return
        running = assigned.running
        running.evidence.expose(1, assigned.unit)
        running.add(outcome)
        if assigned.is_checked and not outcome.failed:
            self._checking.look(running, assigned.stage, 1, assigned.unit, exchange, said)

    async def _ask(self, exchange: Exchange, assigned: Assigned, deployment: Deployment) -> tuple[Outcome, bytes]:
        clock = asyncio.get_running_loop().time
        incoming, began = exchange.incoming, clock()
        call = incoming.call_to(deployment, exchange.facts.prompt_tokens, include_usage=True)
        try:
            answer = await self._fleet.engine_of(deployment).adapter.send(call)
            said = await answer.read_all()
        except Rejected as error:
            raise Disturbed from error  # it says nothing of the arm
        except (EngineError, KeyError) as error:
            logger.debug("experiment %s: a copy failed: %s", assigned.running.experiment.name, error)
            return Outcome(assigned.stage, 1, assigned.unit, failed=True), b""
        shown = answer.outcome
        first = shown.first_token_at
        outcome = Outcome(
            assigned.stage,
            1,
            assigned.unit,
            ttft_s=None if first is None else first - began,
            decode_per_s=1.0 / shown.tpot_s if shown.tpot_s else None,
            total_s=clock() - began,
            output_tokens=shown.output_tokens,
        )
        return outcome, said
