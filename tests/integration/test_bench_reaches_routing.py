"""What `paceline bench` measures is what a Paceline predicts with, also one that runs meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from engines.scripted import ScriptedEngine
from gateways import Gateway, engine_at
from measurements import deployment, record, run

from gateway.learned import Learned
from measure.place import records_in
from measure.records import Kind, Record
from measure.store import Store
from policies.types import Deployment, SpeedSample

LIMIT_S = 10.0

Start = Callable[..., Gateway]


def grid(of: Deployment, ttft_s: float, **fields: Any) -> list[Record]:
    """A benchmark of two lengths, whose TTFT is ``ttft_s`` at the shorter."""
    return [
        record(run(length, ttft_s * length / 64), of=of, kind=Kind.GRID, asked_tokens=length, **fields)
        for length in (64, 256)
    ]


class Routing:
    """A running gateway with one deployment, and its records as another process sees them."""

    def __init__(self, running: Gateway) -> None:
        self.gateway = running
        self.deployment: Deployment = running.house.fleet.deployments[0]
        self._path = records_in(running.house.settings.data_dir)

    def add(self, *records: Record) -> None:
        store = Store(self._path)
        store.add(*records)
        store.close()

    def samples(self, wanted: int) -> tuple[SpeedSample, ...]:
        """What routing predicts with, once it has ``wanted`` samples for its shortest prompt of that many ms."""
        return self.gateway.run(self._until(wanted / 1000))

    async def _until(self, ttft_s: float) -> tuple[SpeedSample, ...]:
        house = self.gateway.house
        assert house.measuring is not None
        house.measuring.fleet_changed()  # it looks by itself every half a minute
        async with asyncio.timeout(LIMIT_S):
            while True:
                samples = house.fleet.learned.samples(self.deployment.fingerprint)
                if samples and samples[0].prefill_s == pytest.approx(ttft_s):
                    return samples
                await asyncio.sleep(0.01)


@pytest.fixture
def routing(gateway: Start, scripted: Callable[..., ScriptedEngine]) -> Routing:
    return Routing(gateway(engines=[engine_at(scripted(kind="llamacpp"), "near")]))


def test_a_running_gateway_takes_up_a_benchmark_and_the_next_one(routing: Routing) -> None:
    routing.add(*grid(routing.deployment, 0.6))
    assert [sample.prompt_tokens for sample in routing.samples(600)] == [64, 256]
    routing.add(*grid(routing.deployment, 0.3))
    assert [sample.prompt_tokens for sample in routing.samples(300)] == [64, 256]


def test_cells_with_several_requests_at_once_teach_what_a_batch_costs(routing: Routing) -> None:
    alone, together = grid(routing.deployment, 0.6), grid(routing.deployment, 0.6, concurrency=4)
    slower = [replace(each, tpot_s=0.3, decode_per_s=1 / 0.3) for each in together]
    routing.add(*alone, *slower)
    routing.samples(600)
    profile = routing.gateway.house.fleet.learned.predictor.profile(routing.deployment.fingerprint)
    assert profile is not None
    assert profile.contention.batch_factor(3) == pytest.approx(3.0, rel=0.2)


async def test_what_was_learned_on_top_of_an_older_measurement_does_not_hide_a_benchmark() -> None:
    one = deployment()
    of = one.fingerprint
    old, new = [SpeedSample(64, 16, 0.6, 0.02), SpeedSample(256, 16, 2.4, 0.02)], [SpeedSample(64, 16, 0.3, 0.01)]
    before = Learned()
    before.recall(one, old, [], None)
    state = before.predictor.to_dict(of)
    same, other = Learned(), Learned()
    same.recall(one, old, [], state)
    other.recall(one, new, [], state)
    assert [learned.samples(of) for learned in (same, other)] == [tuple(old), tuple(new)]
    profile = other.predictor.profile(of)
    assert profile is not None
    assert profile.speed.samples == tuple(new)
