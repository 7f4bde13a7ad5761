"""When a measurement may begin: the start is over, no model is being loaded beside it, and the cores are idle."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from measure.cpu import QUIET_LIMIT_S, wait_for_idle_cores
from policies.types import Deployment, Health

if TYPE_CHECKING:
    from gateway.engine import Engine
    from gateway.fleet import Fleet

LOADING_LIMIT_S = 120.0
"""So long a measurement waits for a model that is being loaded on the same hardware."""
NO_HURRY_S = 1.0
"""How long what can be done at any time waits for idle cores: its time comes again."""


class Quiet:
    """Keeps measurements away from what would slow them, live requests apart: those have ``Traffic``."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._began_at = asyncio.get_running_loop().time()
        self.start_is_over = False
        """Whether this process has imported all that it imports after it began to listen."""

    def allows(self, deployment: Deployment) -> bool:
        """Return whether a measurement of ``deployment`` may begin, as far as can be told at once."""
        return self.start_is_over and not any(self._loads_beside(engine, deployment) for engine in self._fleet.engines)

    async def settles(self, deployment: Deployment, limit_s: float = QUIET_LIMIT_S) -> bool:
        """Wait for idle cores where the deployment runs on this machine, for ``limit_s`` at most.

        Returns whether they are idle, or belong to another machine.
        """
        if deployment.hardware.host != socket.gethostname():
            return True
        return await wait_for_idle_cores(limit_s)

    def _loads_beside(self, engine: Engine, deployment: Deployment) -> bool:
        """Whether an engine that runs on the same hardware, or on the same host as far as is known, is being loaded."""
        if not engine.first_answer.is_set():
            since = self._began_at
        elif engine.health is Health.LOADING:
            since = engine.loading_since
        else:
            return False
        if engine.deployments:
            beside = any(each.hardware.shares(deployment.hardware) for each in engine.deployments)
        else:
            beside = engine.source.host == deployment.hardware.host
        return beside and asyncio.get_running_loop().time() - since < LOADING_LIMIT_S
