"""The logical name of a model whose engine calls it after a file, a quantisation or a registry tag."""

from __future__ import annotations

import re

_EXTENSION = re.compile(r"\.(gguf|bin|safetensors)$", re.IGNORECASE)
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_PRECISION = re.compile(
    r"[-._](?:"
    r"I?Q[1-8](?:_[0-9A-Z]+)*"  # GGUF: Q4_1, Q4_K_M, IQ3_XXS
    r"|(?:MX)?FP(?:4|8|16|32)|BF16|F16|F32|INT[48]|[48]-?BIT|W[48]A(?:8|16)"
    r"|AWQ|GPTQ|NF4|GGUF"
    r")$",
    re.IGNORECASE,
)


def logical_name(engine_model: str) -> str:
    """Return the name that two engines serving the same model have in common.

    The folder or owner, the file extension, ``:latest`` and trailing precisions are dropped:
    ``"models/SmolLM2-135M-Instruct.Q4_1.gguf"`` is ``"SmolLM2-135M-Instruct"``. A configuration's ``models`` mapping
    comes before this guess. A name of which nothing would be left stays as it is.
    """
    name = engine_model.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1].removesuffix(":latest")
    name = _SHARD.sub("", _EXTENSION.sub("", name))
    while (shorter := _PRECISION.sub("", name)) != name and shorter:
        name = shorter
    return name or engine_model
