"""The precision of a folder of safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adapters.model_folder import digest_of_folder, precision_of_folder
from policies.types import Precision


def quantised(method: str, **more: Any) -> dict[str, Any]:
    return {"torch_dtype": "bfloat16", "quantization_config": {"quant_method": method, **more}}


def compressed(bits: int, kind: str, inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    group = {"weights": {"num_bits": bits, "type": kind}, "input_activations": inputs}
    return quantised("compressed-tensors", config_groups={"group_0": group})


CONFIGS = [
    ({"torch_dtype": "bfloat16"}, Precision.BF16, ""),
    ({"dtype": "float16"}, Precision.FP16, ""),
    ({"dtype": "torch.float32"}, Precision.FP32, ""),
    ({"text_config": {"dtype": "bfloat16"}}, Precision.BF16, ""),
    ({}, Precision.UNKNOWN, ""),
    (quantised("awq", bits=4), Precision.INT4, "AWQ"),
    (quantised("gptq", bits=8), Precision.INT8, "GPTQ"),
    (quantised("gptq", bits=4), Precision.INT4, "GPTQ"),
    (quantised("fp8"), Precision.FP8, "FP8"),
    (quantised("mxfp4"), Precision.INT4, "MXFP4"),
    (quantised("bitsandbytes", load_in_8bit=True), Precision.INT8, "BNB-INT8"),
    (quantised("bitsandbytes", load_in_4bit=True), Precision.INT4, "BNB-NF4"),
    (compressed(8, "float"), Precision.FP8, "FP8"),
    (compressed(8, "int", {"num_bits": 8}), Precision.INT8, "W8A8"),
    (compressed(4, "int"), Precision.INT4, "W4A16"),
    (quantised("compressed-tensors"), Precision.UNKNOWN, "compressed-tensors"),
    (quantised("something-new"), Precision.UNKNOWN, "something-new"),
]


@pytest.mark.parametrize(("config", "precision", "scheme"), CONFIGS)
def test_the_config_tells(tmp_path: Path, config: dict[str, Any], precision: Precision, scheme: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert precision_of_folder(str(tmp_path)) == (precision, scheme)


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00"])
def test_a_folder_that_does_not_tell_is_unknown(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert precision_of_folder(str(tmp_path)) == (Precision.UNKNOWN, "")
    assert precision_of_folder(str(tmp_path / "nowhere")) == (Precision.UNKNOWN, "")
    assert precision_of_folder("") == (Precision.UNKNOWN, "")


def test_other_weights_have_another_digest(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"1234")
    first = digest_of_folder(str(tmp_path))
    assert first
    assert digest_of_folder(str(tmp_path)) == first
    (tmp_path / "model.safetensors").write_bytes(b"12345")
    assert digest_of_folder(str(tmp_path)) != first
    assert digest_of_folder(str(tmp_path / "nowhere")) == ""
