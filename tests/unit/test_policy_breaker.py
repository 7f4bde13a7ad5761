"""The breaker and the retry budget."""

from __future__ import annotations

from policies.breaker import Breaker, Pass, State
from policies.retry import RetryBudget


def enter(breaker: Breaker, now: float) -> Pass:
    leave, _ = breaker.enter(now)
    assert leave is not None
    return leave


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(3):
        enter(breaker, now).failed(now)
    assert breaker.state is State.OPEN
    return breaker


def test_three_failures_in_a_row_open_it_and_that_is_one_change() -> None:
    breaker = Breaker()
    changes = [enter(breaker, 0.0).failed(0.0) for _ in range(3)]
    assert changes[:2] == [None, None]
    assert str(changes[2]) == "breaker closed -> open for 2 s after 3 failures in a row"
    assert breaker.enter(1.0) == (None, None)
    assert not breaker.allows(1.0)
    assert breaker.open_for_s(0.5) == 1.5


def test_a_success_in_between_starts_the_count_again() -> None:
    breaker = Breaker()
    for _ in range(10):
        enter(breaker, 0.0).failed(0.0)
        enter(breaker, 0.0).failed(0.0)
        enter(breaker, 0.0).succeeded()
    assert breaker.state is State.CLOSED


def test_what_ends_without_a_verdict_does_not_count() -> None:
    breaker = Breaker()
    for _ in range(10):
        enter(breaker, 0.0).abandoned()
    assert breaker.state is State.CLOSED


def test_half_open_lets_exactly_one_probe_through() -> None:
    breaker = opened()
    probe, change = breaker.enter(2.0)
    assert probe is not None
    assert probe.is_probe
    assert str(change) == "breaker open -> half-open"
    assert breaker.enter(2.1) == (None, None)
    assert not breaker.allows(99.0)
    assert breaker.open_for_s(2.1) == 0.0


def test_a_probe_that_succeeds_closes_it() -> None:
    breaker = opened()
    change = enter(breaker, 2.0).succeeded()
    assert str(change) == "breaker half-open -> closed"
    assert not enter(breaker, 2.0).is_probe
    assert enter(breaker, 2.0).failed(2.0) is None


def test_a_probe_that_fails_opens_it_for_twice_as_long_up_to_a_minute() -> None:
    breaker, now, opens = opened(), 0.0, []
    for _ in range(8):
        now += breaker.open_for_s(now)
        change = enter(breaker, now).failed(now)
        assert change is not None
        opens.append(change.open_s)
    assert opens == [4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 60.0]
    now += 60.0
    enter(breaker, now).succeeded()
    for _ in range(3):
        change = enter(breaker, now).failed(now)
    assert change is not None
    assert change.open_s == 2.0


def test_a_probe_that_is_cancelled_or_answered_busy_frees_the_place_for_the_next() -> None:
    breaker = opened()
    assert enter(breaker, 2.0).abandoned() is None
    assert breaker.allows(2.0)
    again = enter(breaker, 2.0)
    assert again.is_probe
    assert again.succeeded() is not None


def test_only_the_first_ending_of_a_call_counts() -> None:
    breaker = opened()
    probe = enter(breaker, 2.0)
    probe.abandoned()
    assert probe.succeeded() is None
    assert probe.failed(2.0) is None
    assert breaker.state is State.HALF_OPEN


def test_calls_from_before_a_change_of_state_do_not_decide_about_it() -> None:
    breaker = Breaker()
    old = [enter(breaker, 0.0) for _ in range(5)]
    for _ in range(3):
        enter(breaker, 0.0).failed(0.0)
    assert old[0].succeeded() is None
    assert breaker.state is State.OPEN
    probe = enter(breaker, 2.0)
    assert old[1].failed(2.0) is None
    assert old[2].abandoned() is None
    assert not breaker.allows(2.0)
    assert probe.succeeded() is not None
    assert old[3].failed(2.0) is None


def test_retries_stay_a_fifth_of_the_requests_when_everything_fails() -> None:
    budget, spent = RetryBudget(), 0
    for i in range(5000):
        now = i * 0.001
        budget.request(now)
        spent += budget.spend(now)
    assert spent <= 0.2 * 5000 + 20 + 5
    assert spent >= 0.2 * 5000


def test_a_quiet_gateway_can_always_retry_a_little() -> None:
    budget = RetryBudget(most=2.0)
    assert [budget.spend(0.0) for _ in range(3)] == [True, True, False]
    assert not budget.spend(0.5)
    assert budget.spend(1.5)
    assert [budget.spend(1000.0) for _ in range(3)] == [True, True, False]
