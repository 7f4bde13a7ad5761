"""What engines call their number formats, as a precision class and a scheme."""

from __future__ import annotations

import pytest

from adapters.precision_names import precision_named
from policies.types import Precision


@pytest.mark.parametrize(
    ("dtype", "quantization", "precision", "scheme"),
    [
        ("float16", "", Precision.FP16, ""),
        ("torch.bfloat16", "none", Precision.BF16, ""),
        ("Float32", "", Precision.FP32, ""),
        ("auto", "", Precision.UNKNOWN, ""),
        ("", "", Precision.UNKNOWN, ""),
        ("bfloat16", "awq", Precision.INT4, "awq"),
        ("bfloat16", "gptq_marlin", Precision.INT4, "gptq_marlin"),
        ("float16", "fp8", Precision.FP8, "fp8"),
        ("float16", "w8a8_int8", Precision.INT8, "w8a8_int8"),
        ("float16", "bitsandbytes-nf4", Precision.INT4, "bitsandbytes-nf4"),
        ("float16", "eetq", Precision.INT8, "eetq"),
        ("", "Q4_K_M", Precision.INT4, "Q4_K_M"),
        ("", "Q8_0", Precision.INT8, "Q8_0"),
        ("", "4bit", Precision.INT4, "4bit"),
        ("", "8-bit", Precision.INT8, "8-bit"),
        ("", "BF16", Precision.BF16, "BF16"),
        ("float16", "something-new", Precision.UNKNOWN, "something-new"),
    ],
)
def test_a_quantisation_counts_before_the_dtype(dtype: str, quantization: str, precision, scheme: str) -> None:
    assert precision_named(dtype, quantization) == (precision, scheme)
