"""Paged attention in Triton's interpreter equals plain torch, whatever the lengths, heads, windows and blocks."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.launch import INTERPRETED
from tests.engine import kernel_cases as cases
from tests.engine.kernel_cases import DTYPES, Heads, Place

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="kernels are interpreted with TRITON_INTERPRET=1 only")

SHAPES = (
    Heads(3, 1, 64),
    Heads(4, 4, 80, window=9),
    Heads(14, 2, 128, softcap=5.0),
    Heads(2, 1, 256, window=40, softcap=20.0),
    Heads(6, 2, 64, kept=torch.int8),
    Heads(6, 2, 64, window=30, kept=torch.float8_e4m3fn),
)
EACH = pytest.mark.parametrize("heads", SHAPES, ids=str)


@pytest.fixture(params=DTYPES, ids=str)
def at(request: pytest.FixtureRequest) -> Place:
    """A CPU, in each dtype."""
    return Place(request.param)


@EACH
def test_a_new_position_sees_its_own_past(at: Place, heads: Heads) -> None:
    cases.check_decode(at, heads, (1, 37, 0, 130))


def test_a_long_past_is_split_and_joined_as_if_it_were_not(at: Place) -> None:
    cases.check_decode(at, Heads(2, 1, 64), (700,))
    cases.check_decode(at, Heads(2, 1, 64, window=513), (700, 3))


@EACH
def test_new_rows_see_their_prefix_and_each_other_up_to_themselves(at: Place, heads: Heads) -> None:
    cases.check_prefill(at, heads, (1, 30, 0, 37), (1, 30, 0, 75))


def test_drafts_of_many_sequences_find_their_own(at: Place) -> None:
    cases.check_prefill(at, Heads(8, 1, 64), (5, 1, 3, 1, 2, 4), (20, 31, 3, 16, 17, 40), block_size=8)
