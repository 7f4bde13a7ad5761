"""The precision that a folder of safetensors says it has: its ``config.json``, for engines that do not tell."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

import msgspec

from policies.types import Precision

_MAX_CONFIG_BYTES: Final = 4 * 1024 * 1024
_DTYPES: Final = {"float16": Precision.FP16, "bfloat16": Precision.BF16, "float32": Precision.FP32}
_BITS: Final = {8: Precision.INT8, 4: Precision.INT4, 3: Precision.INT4, 2: Precision.INT4}
_METHODS: Final = {
    "awq": (Precision.INT4, "AWQ"),
    "gptq": (Precision.INT4, "GPTQ"),
    "gptq_marlin": (Precision.INT4, "GPTQ"),
    "awq_marlin": (Precision.INT4, "AWQ"),
    "fp8": (Precision.FP8, "FP8"),
    "fbgemm_fp8": (Precision.FP8, "FP8"),
    "mxfp4": (Precision.INT4, "MXFP4"),
    "nvfp4": (Precision.INT4, "NVFP4"),
}


def precision_of_folder(folder: str) -> tuple[Precision, str]:
    """Precision and scheme of the model in ``folder``; unknown when there is no readable ``config.json``.

    Reads the disk: call it from a thread. Not for float32 in vLLM, which computes in 16 bits by default.
    """
    try:
        with (Path(folder) / "config.json").open("rb") as file:
            config = msgspec.json.decode(file.read(_MAX_CONFIG_BYTES), type=dict[str, Any])
    except (OSError, ValueError):
        return Precision.UNKNOWN, ""
    nested = config.get("text_config")
    text = nested if isinstance(nested, dict) else {}
    quantised = config.get("quantization_config") or text.get("quantization_config")
    if isinstance(quantised, dict):
        return _quantised(quantised)
    dtype = next((c[key] for c in (config, text) for key in ("dtype", "torch_dtype") if c.get(key)), "")
    return _DTYPES.get(str(dtype).removeprefix("torch."), Precision.UNKNOWN), ""


def _quantised(config: dict[str, Any]) -> tuple[Precision, str]:
    method = str(config.get("quant_method") or "").lower()
    precision, scheme = _METHODS.get(method, (Precision.UNKNOWN, method))
    if method == "compressed-tensors":
        return _compressed(config)
    if method == "bitsandbytes":
        eight = config.get("load_in_8bit") is True
        return (Precision.INT8, "BNB-INT8") if eight else (Precision.INT4, "BNB-NF4")
    bits = config.get("bits", config.get("w_bit"))
    if isinstance(bits, int) and bits in _BITS and precision is not Precision.FP8:
        precision = _BITS[bits]
    return precision, scheme


def _compressed(config: dict[str, Any]) -> tuple[Precision, str]:
    """compressed-tensors: the format of the weights in its first group."""
    groups = config.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    if not isinstance(weights, dict):
        return Precision.UNKNOWN, "compressed-tensors"
    bits, kind = weights.get("num_bits"), weights.get("type")
    inputs = first.get("input_activations") if isinstance(first, dict) else None
    activations = inputs.get("num_bits", 16) if isinstance(inputs, dict) else 16
    if kind == "float" and bits == 8:
        return Precision.FP8, "FP8"
    return _BITS.get(bits if isinstance(bits, int) else 0, Precision.UNKNOWN), f"W{bits}A{activations}"


def digest_of_folder(folder: str) -> str:
    """A short name for the weights in ``folder``: their configuration, and the name and size of each file of them.

    ``""`` when it cannot be read. Reads the disk: call it from a thread.
    """
    try:
        weights = sorted(Path(folder).glob("*.safetensors"))
        listing = "".join(f"{path.name}:{path.stat().st_size};" for path in weights)
        config = (Path(folder) / "config.json").read_bytes()
    except OSError:
        return ""
    return hashlib.sha256(config + listing.encode()).hexdigest()[:16]
