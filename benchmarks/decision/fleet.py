"""A gateway's fleet without a network: engines that nobody asks, deployments that are up, and work on their books."""

from __future__ import annotations

import asyncio

from adapters.base import Adapter, Endpoint
from gateway.engine import Engine
from gateway.fleet import Fleet
from gateway.settings import RoutingSettings
from gateway.source import Source
from policies.types import Capability, Deployment, Hardware, Health, Precision, RequestFacts, SpeedSample

MODEL = "model"
ASK = RequestFacts(
    MODEL, prompt_tokens=300, prompt_tokens_least=100, expected_output=48, prefix=tuple(range(1, 9)), scope="caller"
)


class _Nowhere(Source):
    """An engine that never answers, so that its watcher waits."""

    async def connect(self) -> Adapter:
        await asyncio.Event().wait()
        raise AssertionError


def make_fleet(count: int, *, hosts: int) -> Fleet:
    """Return a fleet of so many measured deployments of one model, spread over so many hosts with one CPU each.

    Must be called in a running loop; close the fleet.
    """
    fleet = Fleet(RoutingSettings(), {})
    for i in range(count):
        deployment = _deployment(i, f"host{i % hosts}")
        source = _Nowhere(Endpoint(deployment.endpoint, ""), deployment.hardware)
        engine = Engine(source, build=lambda *_: (), inflight=lambda: 0, on_change=fleet.changed)
        engine.deployments = (deployment,)
        engine.health = Health.UP
        fleet.add(engine)
        speeds = [SpeedSample(n, 32, n / (200.0 + 7 * i % 300), 1.0 / (20.0 + i % 30)) for n in (16, 64, 256, 1024)]
        fleet.learned.predictor.measured(deployment.fingerprint, speeds, (), deployment.hardware)
    fleet.changed()
    return fleet


def make_used(fleet: Fleet) -> None:
    """Let some requests have run beside each other on each deployment, so that company is usual there."""
    now = asyncio.get_running_loop().time()
    for deployment in fleet.deployments:
        for start in range(0, 200, 10):
            leases = [
                fleet._ledger.open(
                    deployment.id, prefill_tokens=200, decode_tokens=80, context_tokens=300, now=now + start
                )
                for _ in range(2)
            ]
            for lease in leases:
                lease.first_token(now + start + 1.0)
            for lease in leases:
                lease.close(now + start + 5.0)


def make_busy(fleet: Fleet, count: int) -> None:
    """Put two requests on each of the first deployments: one that reads its prompt, one that writes."""
    now = asyncio.get_running_loop().time()
    for deployment in fleet.deployments[:count]:
        leases = [
            fleet._ledger.open(deployment.id, prefill_tokens=200, decode_tokens=80, context_tokens=300, now=now)
            for _ in range(2)
        ]
        leases[0].first_token(now)


def _deployment(i: int, host: str) -> Deployment:
    return Deployment(
        id=f"engine{i:03}/{MODEL}",
        model=MODEL,
        engine="llamacpp",
        endpoint=f"engine{i:03}",
        engine_model=MODEL,
        precision=Precision.FP16,
        context=8192,
        slots=4,
        capabilities=frozenset(Capability),
        hardware=Hardware(host, frozenset({f"{host}/cpu"})),
        fingerprint=f"fingerprint{i}",
    )
