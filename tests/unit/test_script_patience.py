"""How long the demo and the benchmarks wait for a gateway that measures."""

from __future__ import annotations

from scripts.lib.gateway_process import Patience


class _Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_it_is_over_when_there_has_been_no_news_for_too_long_not_when_it_has_been_long() -> None:
    clock = _Clock()
    patience = Patience(still_limit_s=10, limit_s=100, clock=clock)
    for step in range(9):
        assert not patience.is_over(step), step
        clock.now_s += 10
    assert not patience.is_over(8)  # as long as allowed since it became 8
    clock.now_s += 0.5
    assert patience.is_over(8)


def test_it_is_over_in_the_end_whatever_the_news() -> None:
    clock = _Clock()
    patience = Patience(still_limit_s=10, limit_s=100, clock=clock)
    for step in range(20):
        assert not patience.is_over(step), step
        clock.now_s += 5
    clock.now_s += 0.5
    assert patience.is_over("news")
