"""The number formats that engines, model folders and quantisers name, as a precision class and a scheme."""

from __future__ import annotations

from typing import Final

from adapters.gguf_types import precision_of, scheme_of
from policies.types import Precision

_DTYPES: Final = {
    "float32": Precision.FP32,
    "fp32": Precision.FP32,
    "float16": Precision.FP16,
    "fp16": Precision.FP16,
    "half": Precision.FP16,
    "bfloat16": Precision.BF16,
    "bf16": Precision.BF16,
    "float8_e4m3fn": Precision.FP8,
    "fp8": Precision.FP8,
}
_QUANTISERS: Final = (
    ("fp8", Precision.FP8),
    ("8bit", Precision.INT8),
    ("int8", Precision.INT8),
    ("w8a", Precision.INT8),
    ("eetq", Precision.INT8),
    ("4bit", Precision.INT4),
    ("int4", Precision.INT4),
    ("w4a", Precision.INT4),
    ("awq", Precision.INT4),
    ("gptq", Precision.INT4),
    ("nf4", Precision.INT4),
    ("fp4", Precision.INT4),
    ("3bit", Precision.INT4),
    ("2bit", Precision.INT4),
)
_NONE: Final = frozenset(["", "none", "null", "auto", "unknown"])


def precision_named(dtype: str, quantization: str = "") -> tuple[Precision, str]:
    """Return the precision and the scheme ("" for none). Weights that are quantised run in that, whatever the dtype.

    Bits that are no class of their own (3, 5, 6) count as int4; a name that says nothing of bits is unknown.
    """
    scheme = quantization.strip()
    if scheme.lower() not in _NONE:
        gguf = precision_of(scheme)
        if gguf is not Precision.UNKNOWN:
            return gguf, scheme_of(scheme)
        name = scheme.lower().replace("-", "").replace("_", "")
        if name in _DTYPES:
            return _DTYPES[name], scheme
        return next((precision for mark, precision in _QUANTISERS if mark in name), Precision.UNKNOWN), scheme
    return _DTYPES.get(dtype.strip().lower().removeprefix("torch."), Precision.UNKNOWN), ""
