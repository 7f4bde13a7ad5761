"""How much time idle probes may take."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.probing import Allowance


def test_nothing_may_be_spent_before_time_has_passed_nor_without_a_share() -> None:
    assert not Allowance(0.01, 100.0).has_any(100.0)
    assert Allowance(0.01, 100.0).has_any(101.0)
    assert not Allowance(0.0, 100.0).has_any(10_000.0)


def test_what_a_probe_took_too_long_is_paid_by_later_time() -> None:
    allowance = Allowance(0.01, 0.0)
    assert allowance.has_any(100.0)
    allowance.spend(3.0)
    assert not allowance.has_any(299.0)
    assert allowance.has_any(301.0)


@given(
    share=st.floats(0.001, 0.2),
    probes=st.lists(st.tuples(st.floats(0.1, 1000.0), st.floats(0.01, 30.0)), min_size=1, max_size=50),
)
def test_the_share_holds_over_time_whatever_probes_take(share: float, probes: list[tuple[float, float]]) -> None:
    allowance, now, spent, longest = Allowance(share, 0.0, most_s=5.0), 0.0, 0.0, 0.0
    for pause, seconds in probes:
        now += pause
        if allowance.has_any(now):
            allowance.spend(seconds)
            spent, longest, now = spent + seconds, max(longest, seconds), now + seconds
    assert spent <= (share * now + longest) * 1.000001
