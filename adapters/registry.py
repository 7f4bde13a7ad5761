"""Kinds of engines and their adapters. An adapter's module is imported when the first of its kind is made."""

from __future__ import annotations

from importlib import import_module
from typing import Final, cast

from adapters.base import Adapter, Endpoint

_ADAPTERS: Final = {
    "llamacpp": "adapters.llamacpp:LlamaCppAdapter",
    "vllm": "adapters.vllm:VllmAdapter",
    "ollama": "adapters.ollama.adapter:OllamaAdapter",
    "lmstudio": "adapters.lmstudio:LmStudioAdapter",
    "mlx": "adapters.openai_compatible:MlxAdapter",
    "sglang": "adapters.openai_compatible:SglangAdapter",
    "tgi": "adapters.openai_compatible:TgiAdapter",
    "trtllm": "adapters.openai_compatible:TrtllmAdapter",
    "llamafile": "adapters.openai_compatible:LlamafileAdapter",
    "koboldcpp": "adapters.openai_compatible:KoboldcppAdapter",
    "openai": "adapters.openai_compatible:OpenAICompatibleAdapter",
    "hosted": "adapters.hosted:HostedAdapter",
}

USUAL_PORTS: Final = (8080, 8081, 8000, 8001, 11434, 1234, 30000, 5001)
"""Ports on which engines listen unless told otherwise: llama.cpp, MLX, TGI and llamafile (and a second one);
vLLM and TensorRT-LLM (likewise); Ollama; LM Studio; SGLang; KoboldCpp."""


def kinds() -> tuple[str, ...]:
    """All kinds that ``create`` knows."""
    return tuple(_ADAPTERS)


def adapter_class(kind: str) -> type[Adapter]:
    """The adapter of a kind. Raises KeyError for a kind that there is none for."""
    module, _, name = _ADAPTERS[kind].partition(":")
    return cast("type[Adapter]", getattr(import_module(module), name))


def create(kind: str, endpoint: Endpoint) -> Adapter:
    """An adapter for one engine instance. Raises KeyError for an unknown kind, ValueError for a bad address."""
    return adapter_class(kind)(endpoint)
