"""What layers are made of computes what its formula says, however many rows there are."""

from __future__ import annotations

import pytest
import torch

from engine.layers import FEW, Norm

ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}
"""What two roundings lose of a value, and a bit for sums in another order."""


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("count", [1, FEW, FEW + 1])
def test_a_norm_divides_by_the_root_of_the_mean_square(dtype: torch.dtype, count: int) -> None:
    random = torch.Generator().manual_seed(0)
    weight = torch.rand(576, generator=random).to(dtype) + 0.5
    x = torch.randn((count, 576), generator=random)
    x[:, 3], x[:, 7] = 3000.0, -900.0  # as models have them: a few numbers are far greater than the others
    x[-1] *= 1e-4
    x = x.to(dtype)
    wide = x.double()
    right = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    found = Norm(weight, 1e-6)(x)
    assert found.dtype == dtype
    assert found.is_contiguous()  # some ways of a linear take nothing else
    torch.testing.assert_close(found.double(), right, rtol=ROUNDING[dtype], atol=1e-6)


def test_a_norm_of_nothing_is_nothing() -> None:
    zeros = torch.zeros((2, 64))
    assert torch.equal(Norm(torch.ones(64), 1e-6)(zeros), zeros)
