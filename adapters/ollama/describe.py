"""What a model on Ollama is, from what /api/tags, /api/show and /api/ps say of it."""

from __future__ import annotations

import re
from typing import Final

from adapters.base import Endpoint, ModelDescription
from adapters.gguf_types import precision_of
from adapters.ollama.api import Installed, Show
from adapters.ollama.request import RELOADING
from policies.types import Capability, Precision

_TEXT: Final = frozenset([Capability.CHAT, Capability.COMPLETION, Capability.JSON_OBJECT, Capability.JSON_SCHEMA])
_CAPABILITIES: Final = {
    "completion": _TEXT,
    "tools": frozenset([Capability.TOOLS]),
    "vision": frozenset([Capability.VISION]),
    "audio": frozenset([Capability.AUDIO]),
    "embedding": frozenset([Capability.EMBEDDINGS]),
}
_LOGPROBS_SINCE: Final = (0, 12, 11)
_UNKNOWN_VERSION: Final = (0, 0, 0)


def capabilities(show: Show, version: str) -> frozenset[Capability]:
    """Capabilities from the engine's own word. Versions before 0.6.4 say nothing: plain text then."""
    names = ["completion"] if show.capabilities is None else show.capabilities
    found: frozenset[Capability] = frozenset().union(*(_CAPABILITIES.get(name, frozenset()) for name in names))
    if Capability.CHAT in found and _version(version) >= _LOGPROBS_SINCE:
        found |= {Capability.LOGPROBS}
    return found


def description(
    name: str, installed: Installed, show: Show, *, endpoint: Endpoint, version: str, resident: bool
) -> ModelDescription:
    """Describe a model. Its ``context`` is its own: a larger one than the resident is a reload away.

    The resident context is no part of ``settings``: each reload would make another fingerprint of the same weights.
    """
    scheme = installed.details.quantization_level
    precision, source = precision_of(scheme), "engine"
    if precision is Precision.UNKNOWN and endpoint.precision is not None:
        precision, source = endpoint.precision, "configuration"
    options = load_options(endpoint)
    fixed = options.get("num_ctx")
    return ModelDescription(
        engine_model=name,
        precision=precision,
        scheme=endpoint.scheme if scheme in ("", "unknown") else scheme,
        precision_from="nobody" if precision is Precision.UNKNOWN else source,
        context=fixed if isinstance(fixed, int) else show.context,
        slots=endpoint.slots or 1,
        capabilities=capabilities(show, version),
        digest=installed.digest,
        resident=resident,
        settings=" ".join(f"{option}={options[option]}" for option in sorted(options)),
    )


def load_options(endpoint: Endpoint) -> dict[str, object]:
    """The operator's options that decide how a model is loaded."""
    options = endpoint.options.get("options")
    return {key: value for key, value in options.items() if key in RELOADING} if isinstance(options, dict) else {}


def _version(text: str) -> tuple[int, ...]:
    """A version as numbers. One built from source says 0.0.0: it counts as new."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", text)[:3])
    return (9999,) if numbers in ((), _UNKNOWN_VERSION) else numbers
