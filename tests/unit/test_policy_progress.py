"""A phase's speed beside neighbours of whom only mean numbers are known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.contention import Contention
from policies.progress import sensitivity, situations, speed
from policies.types import Usual

MEAN = st.floats(0.0, 6.0)
MEANS = st.tuples(MEAN, MEAN, MEAN, MEAN)
EXCESS = st.tuples(*[st.floats(0.0, 40.0)] * 4)


@given(MEANS)
def test_the_situations_take_all_of_the_time_and_keep_the_means(means: tuple[float, float, float, float]) -> None:
    found = situations(means)
    assert sum(share for share, _ in found) == pytest.approx(1.0)
    for kind, mean in enumerate(means):
        assert sum(share * active[kind] for share, active in found) == pytest.approx(mean, abs=1e-9)


@given(MEANS, EXCESS)
def test_neighbours_never_speed_anything_up(
    means: tuple[float, float, float, float], excess: tuple[float, float, float, float]
) -> None:
    beside = situations(means)
    assert 0.0 < speed(beside, excess) <= 1.0 + 1e-9
    assert all(0.0 <= part <= 6.0 * 4 for part in sensitivity(beside, excess))


def test_a_neighbour_that_prefills_for_a_fifth_of_the_time_stops_a_decode_for_no_longer() -> None:
    contention = Contention(((0.0, 0.0, 0.0, 0.0), (0.0, 99.0, 0.0, 0.0)))
    assert contention.factor("decode", {"same_prefilling": 0.2}) == pytest.approx(1 / (0.8 + 0.2 / 100))
    with_others = contention.factor("decode", {"same_decoding": 2.8, "same_prefilling": 0.2})
    assert with_others == pytest.approx(1 / (0.8 + 0.2 / 100))


def test_those_who_usually_come_cost_a_decode_the_time_that_their_prompts_take() -> None:
    contention = Contention(((0.0, 0.0, 0.0, 0.0), (0.0, 99.0, 0.0, 0.0)))
    lost, _, _ = contention.of_the_next(Usual(2.5, 0.4))
    assert lost == pytest.approx(1 / (0.8 + 0.2 / 100) - 1)


def test_what_a_decode_beside_decodes_and_few_prefills_shows_is_not_put_down_to_the_prefills() -> None:
    truth = Contention(((0.0, 0.5, 0.0, 0.0), (0.1, 20.0, 0.0, 0.0)))
    contention = Contention(((0.0, 0.5, 0.0, 0.0), (0.6, 20.0, 0.0, 0.0)))
    for i in range(200):
        beside = {"same_decoding": 2.9 - 0.1 * (i % 4), "same_prefilling": 0.1 * (i % 4)}
        contention.learn("decode", beside, truth.factor("decode", beside))
    assert contention.factor("decode", {"same_decoding": 3.0}) == pytest.approx(1.3, rel=0.03)
    assert contention.factor("decode", {"same_prefilling": 1.0}) == pytest.approx(21.0, rel=0.2)
