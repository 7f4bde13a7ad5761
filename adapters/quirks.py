"""How engines that speak OpenAI's protocol are told apart, and in what they differ: data, not branches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from policies.types import Capability

_PLAIN: Final = frozenset([Capability.CHAT, Capability.COMPLETION])


@dataclass(frozen=True, slots=True)
class Sign:
    """What gives an engine away: any one of these is enough.

    ``owned_by`` in ``/v1/models``, the beginning of the ``Server`` header (in lower case), or a path that answers with
    a JSON object that has all of ``marks``.
    """

    kind: str
    owned_by: tuple[str, ...] = ()
    server: tuple[str, ...] = ()
    path: str = ""
    marks: tuple[str, ...] = ()


SIGNS: Final = (
    Sign("koboldcpp", owned_by=("koboldcpp",), server=("concedollama",), path="/api/extra/version", marks=("result",)),
    Sign("llamafile", owned_by=("llamafile",), server=("llamafile",)),
    Sign(
        "llamacpp", owned_by=("llamacpp",), server=("llama.cpp",), path="/props", marks=("default_generation_settings",)
    ),
    Sign("vllm", owned_by=("vllm",)),
    Sign("sglang", owned_by=("sglang",), path="/get_server_info", marks=("model_path", "tp_size")),
    Sign("trtllm", owned_by=("tensorrt_llm",)),
    Sign("ollama", path="/api/version", marks=("version",)),
    Sign("lmstudio", owned_by=("organization_owner",), path="/api/v0/models", marks=("data",)),
    Sign("tgi", path="/info", marks=("model_id", "max_total_tokens")),
    # Python's own HTTP server is much else too: MLX has this path besides.
    Sign("mlx", server=("basehttp",), path="/health", marks=("status",)),
)
"""In this order: the derived before what it derives from."""

OWN: Final = "paceline"
"""``owned_by`` of Paceline's own models, and of its built-in engine's, which are the ones that tell a precision: it
never takes itself for an engine."""


@dataclass(frozen=True, slots=True)
class Flavour:
    """An engine that needs no adapter of its own.

    ``capabilities`` are what it can be relied on to do; an operator may add others. ``info`` are paths whose JSON
    objects are laid over each other; the other fields are the keys, dotted where nested, under which the answer (or
    the model's card in ``/v1/models``) has a value. ``default_model`` names the model that it was started with.
    """

    label: str
    capabilities: frozenset[Capability] = _PLAIN
    default_model: str = ""
    slots: int | None = None
    info: tuple[str, ...] = ()
    version: str = "version"
    dtype: tuple[str, ...] = ()
    quantization: tuple[str, ...] = ()
    context: tuple[str, ...] = ("max_model_len", "context_length", "max_context_length", "meta.n_ctx")


FLAVOURS: Final = {
    "openai": Flavour("OpenAI-compatible"),
    "mlx": Flavour(
        "MLX",
        # It ignores n, response_format and tool_choice without a word.
        default_model="default_model",
        slots=1,
    ),
    "sglang": Flavour(
        "SGLang",
        capabilities=_PLAIN | {Capability.JSON_OBJECT, Capability.JSON_SCHEMA, Capability.LOGPROBS, Capability.CHOICES},
        info=("/get_server_info",),
        dtype=("dtype",),
        quantization=("quantization",),
        context=("context_length", "max_model_len"),
    ),
    "tgi": Flavour(
        "TGI",
        capabilities=_PLAIN | {Capability.LOGPROBS, Capability.TOOLS, Capability.TOOL_CHOICE},
        info=("/info",),
        dtype=("model_dtype",),
        quantization=("quantize", "quantization"),
        context=("max_total_tokens",),
    ),
    "trtllm": Flavour("TensorRT-LLM", info=("/version",)),
    "llamafile": Flavour(
        "llamafile",
        info=("/props",),
        version="build_info",
        quantization=("model_ftype",),
        context=("default_generation_settings.n_ctx",),
    ),
    "koboldcpp": Flavour(
        "KoboldCpp",
        slots=1,
        info=("/api/extra/version", "/api/extra/true_max_context_length"),
        context=("value",),
    ),
}
"""By kind; ``openai`` is any other."""
