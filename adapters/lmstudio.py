"""The adapter for LM Studio: its own REST interface tells what a model is, OpenAI's protocol does the work."""

from __future__ import annotations

from typing import Final

import msgspec

from adapters.base import EngineDescription, EngineLoad, ModelDescription
from adapters.errors import Broken
from adapters.heard import NOT_JSON, size_in
from adapters.openai_protocol import OpenAIAdapter
from adapters.precision_names import precision_named
from policies.types import Capability, Precision

_MODELS: Final = "/api/v0/models"
# It takes json_schema but refuses json_object; n and logprobs it has not.
_TEXT: Final = frozenset([Capability.CHAT, Capability.COMPLETION, Capability.JSON_SCHEMA])
_BY_TYPE: Final = {
    "llm": _TEXT,
    "vlm": _TEXT | {Capability.VISION},
    "embeddings": frozenset([Capability.EMBEDDINGS]),
}


class _Model(msgspec.Struct):
    id: str
    type: str = "llm"
    arch: str = ""
    compatibility_type: str = ""
    quantization: str = ""
    state: str = ""
    max_context_length: int | None = None
    loaded_context_length: int | None = None
    capabilities: list[str] = []

    @property
    def loaded(self) -> bool:
        return self.state == "loaded"

    @property
    def context(self) -> int | None:
        return (self.loaded_context_length if self.loaded else None) or self.max_context_length


class _Models(msgspec.Struct):
    data: list[_Model]


class LmStudioAdapter(OpenAIAdapter):
    """One LM Studio. It loads a model that is not resident when it is asked for."""

    kind = "lmstudio"
    label = "LM Studio"

    async def describe(self) -> EngineDescription:
        models = tuple(self._describe(model) for model in await self._models())
        return EngineDescription(self.kind, self.label, "", models)

    async def load(self) -> EngineLoad:
        """Only which models are resident: it has no gauges."""
        return EngineLoad(resident=frozenset(model.id for model in await self._models() if model.loaded))

    async def _models(self) -> list[_Model]:
        body = await self._ask("GET", _MODELS)
        try:
            models = msgspec.json.decode(body, type=_Models).data
        except NOT_JSON as error:
            name = self.endpoint.name
            raise Broken(f"its answer to {_MODELS} is not LM Studio's: {error}", engine=name) from error
        return [model for model in models if model.id and model.type in _BY_TYPE]

    def _describe(self, model: _Model) -> ModelDescription:
        precision, scheme = precision_named("", model.quantization)
        source = "engine"
        if precision is Precision.UNKNOWN and self.endpoint.precision is not None:
            precision, source = self.endpoint.precision, "configuration"
        capabilities = _BY_TYPE[model.type]
        if "tool_use" in model.capabilities:
            capabilities |= {Capability.TOOLS}
        return ModelDescription(
            engine_model=model.id,
            precision=precision,
            scheme=scheme or self.endpoint.scheme,
            precision_from="nobody" if precision is Precision.UNKNOWN else source,
            context=size_in(model.context),
            slots=self.endpoint.slots or 1,
            capabilities=capabilities,
            resident=model.loaded,
            settings=f"runtime={model.compatibility_type}" if model.compatibility_type else "",
        )
