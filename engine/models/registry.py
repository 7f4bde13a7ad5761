"""Which decoder an architecture is."""

from __future__ import annotations

from engine.errors import UnsupportedModel
from engine.models.gemma import Gemma
from engine.models.llama import Decoder
from engine.models.parts import Parts
from engine.models.qwen import Qwen

DECODERS: dict[str, type[Decoder]] = {
    "llama": Decoder,
    "mistral": Decoder,
    "qwen2": Qwen,
    "qwen3": Qwen,
    "gemma3": Gemma,
}


def build(parts: Parts) -> Decoder:
    """The model of ``parts``. Raises ``UnsupportedModel`` for an architecture that this engine does not have."""
    decoder = DECODERS.get(parts.config.architecture)
    if decoder is None:
        raise UnsupportedModel(f"architecture {parts.config.architecture!r} is none of {', '.join(DECODERS)}")
    return decoder(parts)
