"""Quantised linears: how far off they are, that rows stay independent, what is chosen and what that takes."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, get_args

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine import quant
from engine.errors import UnsupportedModel
from engine.packed import Channels, Grouped, Weight, compress, concatenate, restore, to_int4, to_int8
from engine.quant import Name, Scheme, choose, linear, plain
from engine.ways import Half, Int4Weights, Int8Weights, Run, Unpacked, Way

CPU = torch.device("cpu")
ROWS = (1, 5, 40, 130)
CASES = [(name, way) for name in get_args(Name) if name != "fp8" for ways in quant._ways(name, CPU, 32) for way in ways]


def weight(outputs: int = 96, inputs: int = 64, seed: int = 0) -> Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)) * 0.1


def rows(count: int, inputs: int = 64, seed: int = 1) -> Tensor:
    """Rows of very different sizes, some of whose numbers stand out, as activations have them."""
    made = torch.randn(count, inputs, generator=torch.Generator().manual_seed(seed))
    made[:, 3] *= 30
    return made * torch.logspace(-3, 3, count)[:, None]


def only(name: Name, way: Way) -> Scheme:
    return Scheme(name, (way,) * len(quant.ROWS))


@pytest.mark.parametrize(("name", "way"), CASES, ids=lambda value: value if isinstance(value, str) else value.name)
def test_each_way_computes_what_the_packed_weight_says(name: Name, way: Way) -> None:
    scheme, whole = only(name, way), weight()
    bias = torch.randn(96)
    made = linear(whole, bias, scheme)
    held = scheme.hold(whole)
    dense = (held if isinstance(held, Tensor) else held.dense()).double()
    for count in ROWS:
        x = rows(count)
        result = made(x)
        exact = x.double() @ dense.t() + bias
        # What a row may be off by, in its own size: int8 or 16-bit activations, 16-bit sums and scales.
        allowed = 0.02 * x.double().norm(dim=1, keepdim=True) * dense.norm(dim=1) + 0.02
        assert ((result - exact).abs() <= allowed).all(), count
        assert result.dtype == x.dtype
    assert made(rows(6).view(2, 3, 64)).shape == (2, 3, 96)
    assert made(rows(2).bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize(("name", "way"), CASES, ids=lambda value: value if isinstance(value, str) else value.name)
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_spoils_no_other_and_stays_so(name: Name, way: Way, poison: float) -> None:
    made = linear(weight(), None, only(name, way))
    for count in ROWS[1:]:
        x = rows(count)
        healthy = made(x)
        x[1, 7] = poison
        result = made(x)
        assert not result[1].isfinite().any()
        rest = torch.arange(count) != 1
        assert torch.equal(result[rest], healthy[rest])


@pytest.mark.parametrize("way", [way for name, way in CASES if name == "int8"], ids=lambda way: way.name)
def test_int8_loses_no_more_of_a_row_with_outliers_than_bf16_would(way: Way) -> None:
    x = torch.randn(40, 512, generator=torch.Generator().manual_seed(4))
    x[:, 7] *= 300
    whole = weight(inputs=512)
    whole[:, 7] = 0  # what stands out is not asked for: the rest is, of which 8 bits for all would leave nothing
    exact = x.double() @ to_int8(whole).dense().double().t()
    error = linear(whole, None, only("int8", way))(x) - exact
    assert error.norm() < 0.02 * exact.norm()


@pytest.mark.parametrize(
    "way", [way for name, way in CASES if name == "int8" and "int8" in way.name], ids=lambda w: w.name
)
def test_int8_products_are_the_same_bits_whatever_else_is_in_the_batch(way: Way) -> None:
    made = linear(weight(), None, only("int8", way))
    x = rows(130)
    together = made(x)
    for count in (1, 2, 17, 129):
        assert torch.equal(made(x[:count]), together[:count])


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), spread=st.floats(-6, 3), zero=st.booleans())
def test_int8_is_off_by_half_a_scale_and_int4_by_half_a_groups_at_most(seed: int, spread: float, zero: bool) -> None:
    whole = weight(seed=seed) * 10.0**spread
    if zero:
        whole[3], whole[:, 32:] = 0, 0
    eight, four = to_int8(whole), to_int4(whole)
    assert ((eight.dense() - whole).abs() <= eight.scales[:, None] * 0.5001).all()
    assert (eight.scales <= whole.abs().amax(1) / 127 + 1e-29).all()
    steps = whole.view(96, 2, 32)
    step = (steps.amax(2) - steps.amin(2)) / 15
    mean_square = (four.dense() - whole).square().view(96, 2, 32).mean(2)
    assert (mean_square <= (step * 0.5001).square() + 1e-30).all()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_numbers_from_gguf_files_become_the_same_numbers_again(kind: str) -> None:
    scheme = gguf.GGMLQuantizationType[kind]
    stored = torch.from_numpy(gguf.dequantize(gguf.quantize(weight(64, 256).numpy(), scheme), scheme))
    again = to_int4(stored)
    assert torch.allclose(again.dense(), stored, rtol=0, atol=float(again.scales.abs().max()) * 1e-3)


def test_int4_of_inputs_that_are_no_whole_groups_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="multiple of 32"):
        to_int4(weight(8, 40))


@pytest.mark.parametrize(("name", "way"), CASES, ids=lambda value: value if isinstance(value, str) else value.name)
def test_a_shape_that_a_way_cannot_take_is_computed_in_another(name: Name, way: Way) -> None:
    scheme, odd = only(name, way), weight(7, 32)
    held = scheme.hold(odd)
    exact = rows(3, 32) @ (held if isinstance(held, Tensor) else held.dense()).float().t()
    assert torch.allclose(linear(odd, None, scheme)(rows(3, 32)), exact, rtol=0.05, atol=float(exact.abs().max()) / 50)


def test_weights_that_16_bits_do_not_hold_are_computed_in_fp32_and_it_is_said() -> None:
    scheme = only("fp32", Half())
    exact, x = weight().bfloat16().float(), rows(3)
    assert torch.allclose(linear(exact, None, scheme)(x), x @ exact.t(), rtol=1e-4, atol=1e-4)
    assert scheme.describe() == "fp32: float32 with 16-bit weights"
    whole = weight()
    whole[0, 0] = 1 / 3
    assert torch.allclose(linear(whole, None, scheme)(x), x @ whole.t(), rtol=1e-4, atol=1e-4)
    assert scheme.describe() == "fp32: float32 with 16-bit weights; float32 for some of 96x64 instead of " + Half().name


@pytest.mark.parametrize("convert", [to_int8, to_int4])
def test_a_large_weight_becomes_what_its_outputs_become_alone(convert: Callable[[Tensor], Channels | Grouped]) -> None:
    whole = weight(9000, 64)
    assert torch.equal(convert(whole).dense(), torch.cat([convert(part).dense() for part in whole.split(1000)]))


def test_int4_weights_are_packed_a_part_at_a_time_as_they_are_at_once() -> None:
    packed, x = to_int4(weight(20_000, 64)), rows(3).bfloat16()
    whole = linear(packed, None, only("int4", Int4Weights(0.625)))(x)
    assert torch.equal(whole[:, 16_000:], linear(packed.narrow(0, 16_000, 4000), None, only("int4", Int4Weights(1)))(x))


def test_packed_weights_are_joined_and_shared_out_as_plain_ones_are() -> None:
    parts = [weight(32, seed=1), weight(64, seed=2)]
    packed = [to_int4(part) for part in parts]
    joined = concatenate(packed)
    assert isinstance(joined, Grouped)
    assert joined.shape == (96, 64)
    whole = torch.cat([part.dense() for part in packed])
    assert torch.equal(joined.dense(), whole)
    assert torch.equal(joined.narrow(0, 10, 20).dense(), whole.narrow(0, 10, 20))
    assert torch.equal(joined.narrow(1, 32, 32).dense(), whole.narrow(1, 32, 32))
    mixed = concatenate([packed[0], parts[1]])
    assert isinstance(mixed, Tensor)
    assert torch.equal(mixed, torch.cat((packed[0].dense(), parts[1])))
    with pytest.raises(UnsupportedModel, match="groups of 32"):
        joined.narrow(1, 16, 32)


def test_packed_int4_stays_the_same_numbers_and_becomes_plain_for_other_schemes() -> None:
    packed = to_int4(weight())
    assert Scheme("int4", plain(torch.float32).ways).hold(packed) is packed
    assert isinstance(Scheme("int8", plain(torch.float32).ways).hold(packed), Channels)
    assert torch.equal(linear(packed, None, plain(torch.float32))(torch.eye(64)), packed.dense().t())


def _times(monkeypatch: pytest.MonkeyPatch, times: dict[str, list[float]]) -> None:
    def measured(way: Way, *_: Any) -> list[float] | None:
        return times.get(way.name)

    monkeypatch.setattr(quant, "_measure", measured)


TIMES = {
    "int8 weights": [1.0, 2.0, 6.0, 50.0],
    "int8 products": [3.0, 3.0, 4.0, 20.0],
    "unpacked as needed": [9.0, 9.0, 9.0, 25.0],
    "bfloat16": [2.0, 2.0, 3.0, 10.0],
}


@pytest.mark.parametrize(
    ("room", "ways", "takes"),
    [
        (None, ["int8 weights", "int8 weights", "bfloat16", "bfloat16"], 3.0),
        (2.5, ["int8 weights"] * 2 + ["int8 products"] * 2, 2.0),
        (1.0, ["int8 weights"] * 4, 1.0),
        (0.1, ["int8 weights"] * 4, 1.0),
    ],
)
def test_others_ways_are_chosen_where_they_are_clearly_faster_and_memory_has_room(
    monkeypatch: pytest.MonkeyPatch, room: float | None, ways: list[str], takes: float
) -> None:
    _times(monkeypatch, TIMES)  # fp32 is missing: a way that does not work here is none
    chosen = choose("int8", [(96, 64)], CPU, room)
    assert [way.name for way in chosen.ways] == ways
    assert chosen.bytes_per_weight == takes
    assert all(name in chosen.describe() for name in ways)
    assert chosen.dtype == chosen.ways[0].dtype


def test_where_all_ways_are_hopelessly_slow_the_precisions_own_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    _times(monkeypatch, {})
    chosen = choose("int8", [(96, 64)], CPU)
    assert {way.name for way in chosen.ways} == {"int8 weights"}


@pytest.mark.parametrize(("most_s", "tried"), [(math.inf, {1, 8}), (0.05, {1})], ids=["itself", "beside another"])
def test_a_way_that_is_hopelessly_slow_is_given_up_before_many_rows(
    monkeypatch: pytest.MonkeyPatch, most_s: float, tried: set[int]
) -> None:
    class Slow(Way):
        def hold(self, weight: Weight) -> Run:
            def run(x: Tensor) -> Tensor:
                seen.append(len(x))
                return x

            return run

    seen: list[int] = []
    monkeypatch.setattr(time, "perf_counter", lambda: 0.01 * sum(seen))  # 10 ms a row and linear
    assert quant._measure(Slow("slow", torch.bfloat16, 2), [weight()] * 8, most_s) is None
    assert set(seen) == tried


def test_a_way_has_to_beat_for_the_fewest_rows_what_a_smaller_one_takes_for_the_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: dict[str, float] = {}

    def measured(way: Way, _: Any, most_s: float) -> list[float] | None:
        limits[way.name] = most_s
        return TIMES.get(way.name)

    monkeypatch.setattr(quant, "_measure", measured)
    choose("int8", [(96, 64)], CPU)
    assert limits == {
        "int8 weights": math.inf,
        "int8 products": 50.0,
        "unpacked as needed": 20.0,
        "bfloat16": 20.0,
        "float32": 10.0,
    }


def test_a_measurement_goes_through_as_much_memory_as_a_models_weights() -> None:
    shapes = [(960, 576), (64, 1536)]
    samples = quant._samples(only("int8", Int8Weights()), shapes)
    assert [sample.shape for sample in samples[:2]] == shapes
    numbers = [sample.numbers for sample in samples if isinstance(sample, Channels)]
    assert sum(each.numel() for each in numbers) >= quant.SAMPLE_WEIGHTS
    assert len({each.data_ptr() for each in numbers}) == len(samples)
    (large,) = quant._samples(only("bf16", Half()), [(100_000, 576)])
    assert isinstance(large, Tensor)
    assert quant.SAMPLE_WEIGHTS <= large.numel() < 1.01 * quant.SAMPLE_WEIGHTS


def test_int8_products_are_right_where_a_cpu_sums_them_in_16_bits() -> None:
    narrow = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    tests = [__file__, "-k", "int8 and products and not 16_bits", "-p", "no:cacheprovider"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *tests], env=narrow, capture_output=True, text=True, timeout=120
    )
    assert not ended.returncode, ended.stdout


def test_a_measurement_on_this_machine_finds_ways_that_work() -> None:
    for name in ("fp32", "bf16", "fp16", "int8", "int4"):
        scheme = choose(name, [(96, 64), (64, 96)], CPU)
        assert scheme.name == name
        assert len(scheme.ways) == len(quant.ROWS)
        assert linear(weight(), None, scheme)(rows(3)).isfinite().all()


def test_fp8_is_refused_where_there_is_none() -> None:
    with pytest.raises(UnsupportedModel, match="no fp8"):
        choose("fp8", [(96, 64)], CPU)


def test_fewer_bytes_are_held_by_smaller_precisions() -> None:
    sizes = [choose(name, [(96, 64)], CPU, 0.0).bytes_per_weight for name in ("fp32", "bf16", "int8", "int4")]
    assert sizes == [2.0, 2.0, 1.0, 0.625]
    assert Unpacked(torch.bfloat16, 1).bytes_per_weight == 1


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), spread=st.floats(-5, 3))
def test_keys_and_values_are_kept_within_their_bounds(seed: int, spread: float) -> None:
    x = torch.randn(7, 3, 16, generator=torch.Generator().manual_seed(seed)) * 10.0**spread
    x[2, 1] = 0
    numbers, scales = compress(x, torch.int8)
    assert scales.shape == (7, 3)
    assert ((restore(numbers, scales, torch.float32) - x).abs() <= scales[..., None] * 0.5001).all()
    numbers, scales = compress(x.bfloat16(), torch.float8_e4m3fn)
    allowed = x.bfloat16().float().abs() / 16 + scales[..., None] / 512
    assert ((restore(numbers, scales, torch.float32) - x.bfloat16().float()).abs() <= allowed * 1.0001).all()


def test_what_is_not_finite_in_keys_and_values_is_not_made_finite() -> None:
    x = torch.ones(2, 4)
    x[0, 1] = torch.nan
    for kind in (torch.int8, torch.float8_e4m3fn):
        restored = restore(*compress(x, kind), torch.float32)
        assert not restored[0].isfinite().any()
        assert np.allclose(restored[1], 1, rtol=0.01)
