"""Kinds of engines and their adapters. An adapter's module is imported when the first of its kind is made."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from adapters.base import Adapter, Endpoint
from adapters.quirks import FLAVOURS

_ADAPTERS: Final = {
    "builtin": "adapters.builtin:BuiltinAdapter",
    "llamacpp": "adapters.llamacpp:LlamaCppAdapter",
    "vllm": "adapters.vllm:VllmAdapter",
    "ollama": "adapters.ollama.adapter:OllamaAdapter",
    "lmstudio": "adapters.lmstudio:LmStudioAdapter",
    "hosted": "adapters.hosted:HostedAdapter",
}

USUAL_PORTS: Final = (8080, 8081, 8000, 8001, 11434, 1234, 30000, 5001)
"""Ports on which engines listen unless told otherwise: llama.cpp, MLX, TGI and llamafile (and a second one);
vLLM and TensorRT-LLM (likewise); Ollama; LM Studio; SGLang; KoboldCpp."""


def kinds() -> tuple[str, ...]:
    """All kinds that ``create`` knows."""
    return (*_ADAPTERS, *FLAVOURS)


def create(kind: str, endpoint: Endpoint) -> Adapter:
    """An adapter for one engine instance. Raises KeyError for an unknown kind, ValueError for a bad address."""
    if kind in FLAVOURS:
        from adapters.openai_compatible import OpenAICompatibleAdapter

        return OpenAICompatibleAdapter(endpoint, kind)
    module, _, name = _ADAPTERS[kind].partition(":")
    made: Adapter = getattr(import_module(module), name)(endpoint)
    return made
