"""The robust trend: right on clean data, unmoved by odd values, and silent where there is nothing to say."""

from __future__ import annotations

from random import Random

import pytest

from measure.trend import by_group, trend


def test_a_line_has_its_own_slope_and_an_interval_that_holds_it() -> None:
    found = trend([[(step, 3.0 + 0.5 * step) for step in range(12)]])
    assert found is not None
    assert (found.slope, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))


def test_groups_at_different_heights_have_one_common_slope() -> None:
    points = [(step % 3, float(step), 10.0 * (step % 3) + 0.1 * step) for step in range(30)]
    found = trend(by_group(points).values())
    assert found is not None
    assert found.slope == pytest.approx(0.1)


def test_a_few_odd_values_do_not_move_it() -> None:
    values = [(float(step), 1.0 + 0.01 * step) for step in range(20)]
    values[3], values[15] = (3.0, 90.0), (15.0, -70.0)
    found = trend([values])
    assert found is not None
    assert found.slope == pytest.approx(0.01, rel=0.05)


def test_the_interval_holds_no_slope_where_there_is_only_noise() -> None:
    random = Random(4)
    held = 0
    for _ in range(200):
        found = trend([[(float(step), random.gauss(0, 1)) for step in range(20)]])
        assert found is not None
        held += found.low <= 0.0 <= found.high
    assert 180 <= held <= 200


@pytest.mark.parametrize("count", [0, 1, 4])
def test_too_few_values_show_no_trend(count: int) -> None:
    assert trend([[(float(step), float(step)) for step in range(count)]]) is None


def test_values_of_one_step_are_not_compared() -> None:
    assert trend([[(1.0, float(value)) for value in range(20)]]) is None
