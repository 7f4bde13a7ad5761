"""llama.cpp's and Ollama's names for number formats, and the precision that they are."""

from __future__ import annotations

import pytest

from adapters.gguf_types import precision_of, scheme_of
from policies.types import Precision

LLAMA_CPP = {
    "all F32": ("F32", Precision.FP32),
    "F16": ("F16", Precision.FP16),
    "BF16": ("BF16", Precision.BF16),
    "Q8_0": ("Q8_0", Precision.INT8),
    "Q6_K": ("Q6_K", Precision.INT4),
    "Q5_K - Medium": ("Q5_K_M", Precision.INT4),
    "Q5_1": ("Q5_1", Precision.INT4),
    "Q4_0": ("Q4_0", Precision.INT4),
    "Q4_1": ("Q4_1", Precision.INT4),
    "Q4_K - Medium": ("Q4_K_M", Precision.INT4),
    "Q4_K - Small": ("Q4_K_S", Precision.INT4),
    "Q3_K - Large": ("Q3_K_L", Precision.INT4),
    "Q2_K - Medium": ("Q2_K_M", Precision.INT4),
    "IQ4_XS - 4.25 bpw": ("IQ4_XS", Precision.INT4),
    "IQ3_S mix - 3.66 bpw": ("IQ3_S", Precision.INT4),
    "IQ1_S - 1.5625 bpw": ("IQ1_S", Precision.INT4),
    "TQ1_0 - 1.69 bpw ternary": ("TQ1_0", Precision.INT4),
    "MXFP4 MoE": ("MXFP4", Precision.INT4),
    "NVFP4": ("NVFP4", Precision.INT4),
    "(guessed) Q8_0": ("Q8_0", Precision.INT8),
    "(guessed) all F32": ("F32", Precision.FP32),
    "unknown, may not work": ("UNKNOWN, MAY NOT WORK", Precision.UNKNOWN),
    "": ("", Precision.UNKNOWN),
}
OLLAMA = {"Q4_K_M": Precision.INT4, "Q8_0": Precision.INT8, "F16": Precision.FP16, "BF16": Precision.BF16}


@pytest.mark.parametrize("name", LLAMA_CPP)
def test_llama_cpps_names(name: str) -> None:
    assert (scheme_of(name), precision_of(name)) == LLAMA_CPP[name]


@pytest.mark.parametrize("name", OLLAMA)
def test_ollamas_names(name: str) -> None:
    assert (scheme_of(name), precision_of(name)) == (name, OLLAMA[name])


def test_every_file_type_of_the_gguf_package_has_a_precision() -> None:
    gguf = pytest.importorskip("gguf")
    names = [kind.name for kind in gguf.LlamaFileType if kind.name != "GUESSED"]
    assert {name: precision_of(name) for name in names if precision_of(name) is Precision.UNKNOWN} == {}
