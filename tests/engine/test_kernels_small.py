"""Kernels equal their references in Triton's interpreter: norms, positions, gates, cache, logits, products."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.launch import INTERPRETED
from tests.engine import kernel_cases as cases
from tests.engine.kernel_cases import DTYPES, Place

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="kernels are interpreted with TRITON_INTERPRET=1 only")


@pytest.fixture(params=DTYPES, ids=str)
def at(request: pytest.FixtureRequest) -> Place:
    """A CPU, in each dtype."""
    return Place(request.param)


@pytest.mark.parametrize("size", [64, 300, 2304])
def test_a_norm_equals_its_reference_with_and_without_what_is_added(at: Place, size: int) -> None:
    cases.check_norm(at, 5, size)


def test_a_norm_reads_heads_where_they_are_in_a_fused_projection(at: Place) -> None:
    cases.check_head_norm(at, 80)


@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(9, 3, 64), (4, 4, 80), (1, 1, 256)])
def test_heads_turn_in_place_and_values_beside_them_stay(at: Place, heads: int, kv_heads: int, size: int) -> None:
    cases.check_rope(at, heads, kv_heads, size)


def test_gates_equal_their_references_across_tiles(at: Place) -> None:
    cases.check_gated(at, 3, 1100)


@pytest.mark.parametrize("kept", [None, torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize(("heads", "size"), [(3, 80), (40, 64)])
def test_keys_and_values_go_to_their_slots_and_padding_nowhere(
    at: Place, heads: int, size: int, kept: torch.dtype | None
) -> None:
    cases.check_write(at, heads, size, kept)


@pytest.mark.filterwarnings("ignore:(invalid|divide|overflow):RuntimeWarning")  # numpy says it of poisoned rows
def test_one_pass_finds_the_best_token_the_sum_and_the_poison(at: Place) -> None:
    cases.check_survey(at, 9000)


@pytest.mark.parametrize(("rows", "inner", "outer"), [(1, 64, 48), (3, 1100, 70), (40, 192, 70)])
def test_int8_weights_multiply_as_what_they_stand_for(at: Place, rows: int, inner: int, outer: int) -> None:
    cases.check_int8(at, rows, inner, outer)


@pytest.mark.parametrize(("rows", "inner", "outer", "group"), [(1, 64, 48, 32), (3, 1536, 70, 32), (40, 384, 70, 128)])
def test_int4_weights_multiply_as_what_they_stand_for(at: Place, rows: int, inner: int, outer: int, group: int) -> None:
    cases.check_int4(at, rows, inner, outer, group)
