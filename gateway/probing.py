"""Idle probes: one short request now and then to deployments that nobody uses, so that their speeds stay true."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import psutil

from adapters.errors import EngineError
from gateway.quiet import NO_HURRY_S, Quiet
from gateway.settings import RoutingSettings
from measure.probe import Probe
from measure.traffic import Disturbed
from policies.types import Deployment, Health

if TYPE_CHECKING:
    from gateway.fleet import Fleet

logger = logging.getLogger("paceline.measure")

PROMPT_TOKENS = 128
OUTPUT_TOKENS = 16
_CONTEXT_SHARE = 0.7
"""Prompts keep this far below a small context: their token count is aimed at."""


class Allowance:
    """Seconds that probes may take: a share of the time that passes, none of it saved for longer than ``most_s``.

    What a probe takes beyond it is a debt that later time pays first, so that the share holds over time.
    """

    def __init__(self, share: float, now: float, *, most_s: float = 5.0) -> None:
        self._share = share
        self._most_s = most_s
        self._left_s = 0.0
        self._at = now

    def has_any(self, now: float) -> bool:
        """Return whether a probe may begin."""
        self._left_s = min(self._most_s, self._left_s + self._share * max(0.0, now - self._at))
        self._at = now
        return self._left_s > 0.0

    def spend(self, seconds: float) -> None:
        """A probe has taken so long, whatever came of it."""
        self._left_s -= seconds


class Probing:
    """Probes the deployment that was unused for longest, when its hardware is idle and the allowance has something.

    It never loads a model, never asks a hosted API, and rests while this machine runs on battery.
    """

    def __init__(self, fleet: Fleet, quiet: Quiet, settings: RoutingSettings) -> None:
        self._fleet = fleet
        self._quiet = quiet
        self._after_s = settings.probe_after_s
        self._failed_at: dict[str, float] = {}
        self._allowance = Allowance(settings.probe_share, asyncio.get_running_loop().time())
        self.every_s = min(30.0, settings.probe_after_s)
        """How often it is worth asking."""

    def keep(self, fingerprints: set[str]) -> None:
        """Forget what is known of all others."""
        self._failed_at = {each: at for each, at in self._failed_at.items() if each in fingerprints}

    async def do_one(self) -> bool:
        """Probe one deployment. Returns whether that was tried."""
        now = asyncio.get_running_loop().time()
        if not self._allowance.has_any(now):
            return False
        due = self._due(now)
        if due is None or on_battery() or not await self._quiet.settles(due, NO_HURRY_S):
            return False
        await self._probe(due)
        return True

    def _due(self, now: float) -> Deployment | None:
        """Return the one whose last lesson is the oldest, if that is old enough and its hardware is idle."""
        taught_at = self._fleet.learned.taught_at
        waiting = [
            (taught, deployment.id, deployment)
            for deployment in self._fleet.deployments
            if not deployment.hosted
            and (taught := taught_at(deployment.fingerprint)) is not None
            and now - max(taught, self._failed_at.get(deployment.fingerprint, taught)) >= self._after_s
            and self._fleet.health_of(deployment) is Health.UP
            and self._fleet.engine_of(deployment).is_resident(deployment)
            and self._quiet.allows(deployment)
            and self._fleet.is_idle(deployment.hardware)
        ]
        return min(waiting)[2] if waiting else None

    async def _probe(self, deployment: Deployment) -> None:
        clock = asyncio.get_running_loop().time
        engine, learned = self._fleet.engine_of(deployment), self._fleet.learned
        begun_at = clock()
        try:
            probe = Probe(engine.adapter, deployment)
            length = _length(deployment.context)
            run = await self._fleet.traffic_on(deployment.hardware).give_way(probe.run(length, OUTPUT_TOKENS))
        except Disturbed:
            logger.debug("the probe of %s gave way to a live request", deployment.id)
        except EngineError as error:
            self._failed_at[deployment.fingerprint] = clock()
            logger.debug("the probe of %s failed: %s", deployment.id, error.message)
        else:
            learned.from_probe(deployment, run, clock())
            logger.debug("probed %s: TTFT %.3f s, total %.3f s", deployment.id, run.ttft_s, run.total_s)
        finally:
            self._allowance.spend(clock() - begun_at)
            engine.forget_gauges()


def _length(context: int | None) -> int:
    if context is None:
        return PROMPT_TOKENS
    return max(1, min(PROMPT_TOKENS, int((context - OUTPUT_TOKENS) * _CONTEXT_SHARE)))


def on_battery() -> bool:
    """Return whether this machine runs on battery now; one without a battery, or that does not say, does not."""
    read = getattr(psutil, "sensors_battery", None)  # there is none on some systems
    try:
        battery = None if read is None else read()
    except OSError:
        return False
    return battery is not None and battery.power_plugged is False
