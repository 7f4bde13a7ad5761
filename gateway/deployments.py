"""From an engine's description of itself to the deployments that routing chooses between."""

from __future__ import annotations

from dataclasses import dataclass, field

from adapters.base import EngineDescription, ModelDescription
from adapters.fingerprint import fingerprint
from gateway.names import logical_name
from policies.types import Capability, Deployment, Hardware, Precision

_MANY_MODELS = frozenset({"ollama", "lmstudio", "hosted"})
"""Kinds that serve many models: their deployments are named after engine and model, however few there are now."""


@dataclass(frozen=True, slots=True)
class EngineWord:
    """What the operator says of an engine: it fills what the engine does not tell, and names its models."""

    name: str
    precision: Precision | None = None
    scheme: str = ""
    models: dict[str, str] = field(default_factory=dict)
    capabilities: dict[Capability, bool] = field(default_factory=dict)


def build_deployments(word: EngineWord, description: EngineDescription, hardware: Hardware) -> tuple[Deployment, ...]:
    """Return one deployment for each model of an engine."""
    several = len(description.models) > 1 or description.kind in _MANY_MODELS
    return tuple(_build(word, description, model, hardware, several=several) for model in description.models)


def _build(
    word: EngineWord, description: EngineDescription, model: ModelDescription, hardware: Hardware, *, several: bool
) -> Deployment:
    name = word.models.get(model.engine_model) or logical_name(model.engine_model)
    switched_on = {capability for capability, able in word.capabilities.items() if able}
    return Deployment(
        id=f"{word.name}/{model.engine_model}" if several else word.name,
        model=name,
        engine=description.kind,
        endpoint=word.name,
        engine_model=model.engine_model,
        precision=model.precision,
        scheme=model.scheme,
        context=model.context,
        slots=model.slots,
        capabilities=(model.capabilities | switched_on) - (word.capabilities.keys() - switched_on),
        hardware=hardware,
        fingerprint=fingerprint(description.kind, description.version, model, hardware),
        engine_version=description.version,
        hosted=description.kind == "hosted",
        cache_block=model.cache_block,
    )
