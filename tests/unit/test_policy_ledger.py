"""The ledger: sums that equal a recount, at the same price for one request and a thousand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from fleets import deployment
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.lease import Lease
from policies.ledger import Ledger, Work
from policies.types import Hardware


def open_(ledger: Ledger, name: str, now: float = 0.0, prefill: int = 300, decode: int = 100) -> Lease:
    return ledger.open(name, prefill_tokens=prefill, decode_tokens=decode, context_tokens=300, now=now)


def closed(lease: Lease, now: float) -> Mapping[str, float]:
    """Close a lease and return who was beside it."""
    lease.close(now)
    return lease.neighbours


def test_a_request_counts_from_the_moment_that_it_is_chosen_until_it_is_closed() -> None:
    ledger = Ledger()
    lease = open_(ledger, "a")
    assert ledger.view("a") == Work(1, 1, 300.0, 100.0, 300.0)
    lease.first_token(1.0)
    assert ledger.view("a") == Work(1, 0, 0.0, 100.0, 300.0)
    lease.close(2.0)
    assert ledger.view("a") == Work()
    assert ledger.inflight == 0


def test_what_is_read_and_written_is_no_longer_owed() -> None:
    ledger = Ledger()
    lease = open_(ledger, "a")
    lease.read(128)
    assert ledger.view("a").owed_prefill_tokens == 172
    lease.read(64)
    assert ledger.view("a").owed_prefill_tokens == 172
    lease.first_token(1.0)
    lease.wrote(40)
    assert ledger.view("a")[2:] == (0.0, 60.0, 340.0)


def test_a_request_that_writes_on_past_what_was_expected_still_owes_something() -> None:
    ledger = Ledger()
    lease = open_(ledger, "a", decode=20)
    lease.first_token(0.5)
    for tokens in range(1, 200):
        lease.wrote(tokens)
    assert ledger.view("a").owed_decode_tokens == 8.0
    lease.close(1.0)
    assert ledger.view("a") == Work()


def test_closing_twice_or_reporting_after_the_end_changes_nothing() -> None:
    ledger = Ledger()
    lease, other = open_(ledger, "a"), open_(ledger, "a")
    first = closed(lease, 1.0)
    assert closed(lease, 9.0) == first
    lease.first_token(2.0)
    lease.read(300)
    lease.wrote(80)
    assert ledger.view("a") == Work(1, 1, 300.0, 100.0, 300.0)
    other.close(3.0)


def test_an_unknown_deployment_is_idle() -> None:
    assert Ledger().view("nobody") == Work()


steps = st.lists(
    st.tuples(
        st.sampled_from(["open", "read", "first", "wrote", "close"]),
        st.integers(0, 5),
        st.integers(0, 400),
        st.sampled_from(["a", "b", "c"]),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(steps)
def test_the_sums_equal_a_recount_after_every_step(plan: list[tuple[str, int, int, str]]) -> None:
    ledger = Ledger()
    ledger.place([deployment("a", host="pc"), deployment("b", host="pc"), deployment("c")], 0.0)
    leases: list[tuple[str, Lease, dict[str, float]]] = []
    for now, (step, which, amount, name) in enumerate(plan):
        if step == "open":
            leases.append(
                (
                    name,
                    open_(ledger, name, now, amount, amount),
                    {"read": amount, "owed": amount, "wrote": 0, "first": 0},
                )
            )
        elif leases:
            name, lease, truth = leases[which % len(leases)]
            if step == "read":
                lease.read(amount)
                if not truth["first"]:
                    truth["read"] = min(truth["read"], max(0, truth["owed"] - amount))
            elif step == "first":
                lease.first_token(now)
                truth["first"], truth["read"] = 1, 0
            elif step == "wrote" and truth["first"]:
                lease.wrote(amount)
                truth["wrote"] = max(truth["wrote"], amount)
            elif step == "close":
                lease.close(now)
                leases.remove((name, lease, truth))
        for name in ("a", "b", "c"):
            view, mine = ledger.view(name), [truth for at, _, truth in leases if at == name]
            assert view.inflight == len(mine)
            assert view.prefilling == sum(not truth["first"] for truth in mine)
            assert view.owed_prefill_tokens == pytest.approx(sum(truth["read"] for truth in mine))
            least = sum(max(0.0, truth["owed"] - truth["wrote"]) for truth in mine)
            assert least - 1e-6 <= view.owed_decode_tokens <= least + 16 * len(mine) + 1e-6


# --- who was beside it


def test_a_request_alone_had_no_neighbours() -> None:
    ledger = Ledger()
    lease = open_(ledger, "a", 1.0)
    lease.first_token(2.0)
    assert set(closed(lease, 5.0).values()) == {0.0}
    assert len(closed(lease, 5.0)) == 12


def test_neighbours_are_means_over_the_life_and_over_each_phase() -> None:
    """4 s of prefill and 4 s of decode; a neighbour in the same engine prefills 2 to 4 and decodes 4 to 6."""
    ledger = Ledger()
    lease = open_(ledger, "a", 0.0)
    neighbour = open_(ledger, "a", 2.0)
    lease.first_token(4.0)
    neighbour.first_token(4.0)
    neighbour.close(6.0)
    beside = closed(lease, 8.0)
    assert beside["same_prefilling"] == pytest.approx(0.25)
    assert beside["same_decoding"] == pytest.approx(0.25)
    assert beside["prefill_same_prefilling"] == pytest.approx(0.5)
    assert beside["prefill_same_decoding"] == pytest.approx(0.0)
    assert beside["decode_same_decoding"] == pytest.approx(0.5)
    assert beside["other_decoding"] == beside["other_prefilling"] == 0.0


def test_other_deployments_on_the_same_hardware_are_neighbours_and_those_elsewhere_are_not() -> None:
    ledger = Ledger()
    a, b = deployment("a", host="pc"), deployment("b", host="pc")
    gpu = replace(deployment("gpu"), hardware=Hardware("pc", frozenset({"pc/cpu", "pc/gpu0"})))
    far, cloud = deployment("far"), replace(deployment("cloud"), hardware=Hardware("cloud"))
    ledger.place((a, b, gpu, far, cloud), 0.0)
    lease = open_(ledger, "a", 0.0)
    for other in [open_(ledger, name, 0.0) for name in ("b", "gpu", "far", "cloud")]:
        other.first_token(5.0)
    beside = closed(lease, 10.0)
    assert beside["other_prefilling"] == pytest.approx(1.0)
    assert beside["other_decoding"] == pytest.approx(1.0)
    assert beside["same_decoding"] == beside["same_prefilling"] == 0.0
    assert closed(open_(ledger, "cloud", 10.0), 11.0)["other_decoding"] == 0.0


def test_requests_that_wait_for_a_slot_are_nobodys_neighbours() -> None:
    ledger = Ledger()
    ledger.place((deployment("a", host="pc", slots=1), deployment("b", host="pc")), 0.0)
    running, lease = open_(ledger, "a", 0.0), open_(ledger, "b", 0.0)
    waiting = [open_(ledger, "a", 0.0) for _ in range(5)]
    running.first_token(0.0)
    assert ledger.view("a").inflight == 6
    beside = closed(lease, 4.0)
    assert beside["other_decoding"] == pytest.approx(1.0)
    assert beside["other_prefilling"] == 0.0
    assert len(waiting) == 5


def test_a_fleet_that_changes_keeps_what_is_in_flight() -> None:
    ledger = Ledger()
    a, b = deployment("a", host="pc"), deployment("b", host="pc")
    ledger.place((a,), 0.0)
    lease = open_(ledger, "a", 0.0)
    ledger.place((a, b), 2.0)
    other = open_(ledger, "b", 2.0)
    ledger.place((b,), 3.0)
    assert ledger.view("a").inflight == 1
    assert closed(lease, 4.0)["other_prefilling"] == pytest.approx(0.5)
    ledger.place((b,), 5.0)
    assert closed(other, 6.0)["other_prefilling"] == pytest.approx(0.5)
    assert ledger.view("a") == Work()


def test_a_deployment_that_moves_takes_its_requests_along() -> None:
    ledger = Ledger()
    a, b = deployment("a", host="pc"), deployment("b", host="box")
    ledger.place((a, b), 0.0)
    moving, lease = open_(ledger, "a", 0.0), open_(ledger, "b", 0.0)
    ledger.place((replace(a, hardware=b.hardware), b), 5.0)
    assert closed(lease, 10.0)["other_prefilling"] == pytest.approx(0.5)
    moving.close(11.0)
    lone = open_(ledger, "b", 12.0)
    assert closed(lone, 13.0)["other_prefilling"] == 0.0


def test_a_request_that_took_no_time_had_no_neighbours() -> None:
    ledger = Ledger()
    assert closed(open_(ledger, "a", 3.0), 3.0) == {}


def test_the_ledger_names_who_has_something_in_flight() -> None:
    ledger = Ledger()
    first, second = open_(ledger, "a"), open_(ledger, "a")
    assert ledger.busy == {"a"}
    first.close(1.0)
    assert ledger.busy == {"a"}
    second.close(1.0)
    assert ledger.busy == set()


def test_the_usual_company_is_that_of_the_requests_on_the_same_hardware() -> None:
    ledger = Ledger()
    ledger.place([deployment("a", host="pc"), deployment("b", host="pc"), deployment("c", host="box")], 0.0)
    assert ledger.usual() == {}
    for start in range(0, 400, 10):
        now = float(start)
        leases = [open_(ledger, id_, now) for id_ in ("a", "a", "b")]
        for lease in leases:
            lease.first_token(now)
        for lease in leases:
            lease.close(now + 5.0)
    usual = ledger.usual()
    assert set(usual) == {"a", "b"}
    assert usual["a"] == usual["b"]
    assert usual["a"].decoding == pytest.approx(2.0, rel=0.05)
    assert usual["a"].prefilling < 0.1


def test_who_waits_for_a_slot_is_company_too_and_what_is_usual_is_forgotten_after_a_pause() -> None:
    ledger = Ledger()
    ledger.place([deployment("a", host="pc", slots=1)], 0.0)
    for start in range(0, 200, 10):
        leases = [open_(ledger, "a", float(start)) for _ in range(3)]
        for lease in leases:
            lease.close(start + 5.0)
    assert ledger.usual()["a"].prefilling > 1.5
    open_(ledger, "a", 900.0).close(905.0)
    assert ledger.usual() == {}
