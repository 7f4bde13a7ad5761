"""Other people's numbers are never used for routing: a gateway knows a deployment only by what was measured here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engines.scripted import ScriptedEngine
from gateways import Gateway, engine_at
from measurements import record, run

from gateway.report import fleet_report
from measure.export import Format, export
from measure.imports import read_records
from measure.place import records_in
from measure.records import Kind, Record
from measure.store import Store
from policies.types import Deployment

LIMIT_S = 10.0

Start = Callable[[], Gateway]


@pytest.fixture
def start(tmp_path: Path, scripted: Callable[..., ScriptedEngine]) -> Iterator[Start]:
    """Starts gateways one after the other, on one data folder and one engine; none measures anything."""
    engine = scripted(kind="llamacpp")
    started: list[Gateway] = []

    def begin() -> Gateway:
        for earlier in started:
            earlier.stop()
        started.append(Gateway(tmp_path, engines=[engine_at(engine, "near")]))
        return started[-1]

    yield begin
    for each in started:
        each.stop()


def measured(of: Deployment) -> list[Record]:
    return [record(run(length, length / 100), of=of, kind=Kind.GRID, asked_tokens=length) for length in (64, 256)]


def state(gateway: Gateway) -> str:
    """What the deployment is, once the gateway has looked into its records."""

    async def looked() -> None:
        measuring = gateway.house.measuring
        assert measuring is not None
        measuring.fleet_changed()
        async with asyncio.timeout(LIMIT_S):
            while True:
                if measuring.state()["settled"]:
                    return
                await asyncio.sleep(0.01)

    gateway.run(looked())
    (entry,) = gateway.call(fleet_report, gateway.house.fleet)
    return str(entry["state"])


def test_records_of_this_machine_are_routed_by_and_the_same_ones_imported_are_not(start: Start, tmp_path: Path) -> None:
    (deployment,) = start().house.fleet.deployments
    theirs = read_records(export(measured(deployment), Format.JSONL))
    store = Store(records_in(tmp_path))
    assert store.add_imported(*theirs) == 2
    assert theirs[0].fingerprint == deployment.fingerprint
    assert state(start()) == "unmeasured"
    store.add(*measured(deployment))
    store.close()
    assert state(start()) == "up"
