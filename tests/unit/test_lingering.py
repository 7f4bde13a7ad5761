"""An engine without work that keeps a core busy counts as one that decodes, for those beside it and for nobody else."""

from __future__ import annotations

import asyncio

import pytest
from fleets import deployment, samples

from gateway.lingering import Lingering
from policies.ledger import Ledger
from policies.predict import Predictor
from policies.route import route
from policies.types import Hardware, LoadView, RequestFacts
from policies.view import FleetView

CPU = Hardware("here", frozenset({"here/cpu"}))


async def test_who_ran_beside_it_had_one_decode_as_a_neighbour() -> None:
    ledger, now = Ledger(), asyncio.get_running_loop().time
    ledger.place([deployment("lingers", host="here"), deployment("beside", host="here")], now())
    lingering = Lingering(ledger)
    lingering.begin("lingers", 60.0)
    assert 59.0 < lingering.left_s("lingers", now()) <= 60.0
    begun = now()
    lease = ledger.open("beside", prefill_tokens=1, decode_tokens=1, context_tokens=1, now=begun)
    lease.close(begun + 1.0)
    assert lease.neighbours["other_decoding"] == pytest.approx(1.0)
    lingering.end("lingers")
    assert not lingering.ids
    lease = ledger.open("beside", prefill_tokens=1, decode_tokens=1, context_tokens=1, now=begun + 2.0)
    lease.close(begun + 3.0)
    assert lease.neighbours["other_decoding"] == 0.0


async def test_it_ends_by_itself_and_never_begins_while_there_is_work() -> None:
    ledger, now = Ledger(), asyncio.get_running_loop().time
    ledger.place([deployment("a", host="here")], now())
    lingering = Lingering(ledger)
    lease = ledger.open("a", prefill_tokens=1, decode_tokens=1, context_tokens=1, now=now())
    lingering.begin("a", 60.0)
    assert not lingering.ids
    lease.close(now())
    lingering.begin("a", 0.0)
    assert lingering.ids == {"a"}
    later = asyncio.Event()
    asyncio.get_running_loop().call_later(0.001, later.set)
    await later.wait()
    assert not lingering.ids


def test_a_prediction_beside_it_is_longer_for_as_long_as_it_lasts_and_its_own_is_not() -> None:
    fleet = (deployment("lingers", host="here"), deployment("beside", host="here"))
    predictor = Predictor()
    for each in fleet:
        predictor.measured(each.fingerprint, samples(100.0, 20.0), hardware=CPU)
    facts = RequestFacts("smollm2", prompt_tokens=100, expected_output=40)

    def totals(lingers_s: float) -> dict[str, float]:
        loads = {"lingers": LoadView(lingers_s=lingers_s)} if lingers_s else {}
        decision = route(facts, FleetView(fleet, loads, predictor))
        return {c.deployment.id: c.estimate.total_s for c in decision.candidates if c.estimate is not None}

    alone, a_little, longer = totals(0.0), totals(0.1), totals(1.0)
    assert alone["beside"] < a_little["beside"] < longer["beside"]
    assert alone["lingers"] == a_little["lingers"] == longer["lingers"]
