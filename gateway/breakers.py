"""The breakers of all deployments: who may be asked now, and a word in the log when that changes."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from adapters.errors import Busy
from policies.breaker import Breaker, Change, Pass, State
from policies.types import Deployment

logger = logging.getLogger("paceline.fleet")


class Breakers:
    """One breaker a deployment, by id. ``tripped`` are those that are not closed."""

    def __init__(self) -> None:
        self._breakers: dict[str, Breaker] = {}
        self.tripped: set[str] = set()

    def place(self, deployments: Iterable[Deployment]) -> None:
        """Take up which deployments there are; those that stay keep their breaker."""
        self._breakers = {each.id: self._breakers.get(each.id) or Breaker() for each in deployments}
        self.tripped &= self._breakers.keys()

    def state(self, deployment_id: str) -> State:
        """Return a breaker's state; closed where there is none."""
        breaker = self._breakers.get(deployment_id)
        return State.CLOSED if breaker is None else breaker.state

    def allow(self, deployment_id: str, now: float) -> bool:
        """Return whether a deployment may be asked."""
        return deployment_id not in self.tripped or self._breakers[deployment_id].allows(now)

    def enter(self, deployment: Deployment, now: float) -> Pass:
        """Begin a call. Raises ``Busy`` where another one is finding out whether the deployment has recovered."""
        leave, change = self._breakers[deployment.id].enter(now)
        self.note(deployment, change)
        if leave is None:
            raise Busy("failed repeatedly and is being left alone", engine=deployment.id)
        return leave

    def note(self, deployment: Deployment, change: Change | None) -> None:
        """Take what the ending of a call has changed."""
        if change is not None:
            logger.warning("deployment %s: %s", deployment.id, change)
            (self.tripped.discard if change.after is State.CLOSED else self.tripped.add)(deployment.id)
