"""Products with int8 and int4 weights in Triton's interpreter equal those with the weights they stand for."""

from __future__ import annotations

import pytest

from engine.kernels.launch import INTERPRETED
from tests.engine import kernel_cases as cases
from tests.engine.kernel_cases import DTYPES, Place

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="kernels are interpreted with TRITON_INTERPRET=1 only")


@pytest.fixture(params=DTYPES, ids=str)
def at(request: pytest.FixtureRequest) -> Place:
    """A CPU, in each dtype."""
    return Place(request.param)


@pytest.mark.parametrize(("rows", "inner", "outer"), [(1, 64, 48), (3, 1100, 70), (40, 192, 70)])
def test_int8_weights_multiply_as_what_they_stand_for(at: Place, rows: int, inner: int, outer: int) -> None:
    cases.check_int8(at, rows, inner, outer)


@pytest.mark.parametrize(("rows", "inner", "outer", "group"), [(1, 64, 48, 32), (3, 1536, 70, 32), (40, 384, 70, 128)])
def test_int4_weights_multiply_as_what_they_stand_for(at: Place, rows: int, inner: int, outer: int, group: int) -> None:
    cases.check_int4(at, rows, inner, outer, group)
