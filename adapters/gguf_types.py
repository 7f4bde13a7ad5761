"""The number formats of GGUF files: what llama.cpp and Ollama call them, and the precision class that they are."""

from __future__ import annotations

import re
from typing import Final

from policies.types import Precision

_NAMES: Final = {"all_f32": "F32", "f32": "F32", "f16": "F16", "bf16": "BF16"}
_SIZES: Final = {"small": "S", "medium": "M", "large": "L"}
_EXACT: Final = {"F32": Precision.FP32, "F16": Precision.FP16, "BF16": Precision.BF16}
_QUANTISED: Final = re.compile(r"I?Q(\d)_|TQ(\d)_|(?:MX|NV)FP(4)")


def scheme_of(file_type: str) -> str:
    """The usual short name of a file type: ``"Q4_K - Medium"`` → ``Q4_K_M``, ``"all F32"`` → ``F32``.

    llama.cpp adds remarks (``"IQ4_XS - 4.25 bpw"``, ``"(guessed) Q8_0"``, ``"MXFP4 MoE"``): they are left out.
    """
    text = file_type.replace("(guessed)", "").replace("MOSTLY_", "").strip()
    name, _, remark = (part.strip() for part in text.partition(" - "))
    short = _NAMES.get(name.lower().replace(" ", "_"), name.upper().removesuffix(" MOE").removesuffix(" MIX"))
    size = _SIZES.get(remark.lower())
    return f"{short}_{size}" if size else short


def precision_of(file_type: str) -> Precision:
    """The precision class of a file type, in either spelling.

    There is no class between int8 and int4, nor below: 5 and 6 bits count as int4, since they are less than what int8
    promises, and so do all smaller ones and the 4-bit floats.
    """
    scheme = scheme_of(file_type)
    if scheme in _EXACT:
        return _EXACT[scheme]
    found = _QUANTISED.match(scheme)
    if not found:
        return Precision.UNKNOWN
    return Precision.INT8 if found[1] == "8" else Precision.INT4
