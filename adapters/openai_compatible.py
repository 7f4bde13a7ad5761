"""The adapter for engines that speak OpenAI's protocol and need none of their own: see ``adapters.quirks``."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from adapters.base import Endpoint, EngineDescription, EngineLoad, ModelDescription
from adapters.errors import Broken
from adapters.heard import NOT_JSON, cards_in, size_in, text_in
from adapters.model_folder import precision_of_folder
from adapters.openai_protocol import OpenAIAdapter
from adapters.precision_names import precision_named
from adapters.quirks import FLAVOURS, Flavour
from adapters.recognise import kind_at
from policies.types import Precision


class OpenAICompatibleAdapter(OpenAIAdapter):
    """Any engine with ``/v1/models`` and ``/v1/chat/completions``: one of ``FLAVOURS``.

    One of kind ``openai`` is recognised when it is described, where its answers give it away.
    Capabilities are few unless the engine is a known one: an operator who knows better says so in the configuration.
    """

    def __init__(self, endpoint: Endpoint, kind: str = "openai") -> None:
        super().__init__(endpoint)
        self._take(kind)

    def _take(self, kind: str) -> None:
        self._flavour: Flavour = FLAVOURS[kind]
        self.kind = kind
        self.label = self._flavour.label

    async def describe(self) -> EngineDescription:
        if self.kind == "openai" and (recognised := await kind_at(self._transport)) in FLAVOURS:
            self._take(recognised)
        cards = await self._cards()
        about: dict[str, Any] = {}
        for path in self._flavour.info:
            about.update(await self._ask_if_there(path))
        version = about.get(self._flavour.version)
        folder = Precision.UNKNOWN, ""
        if self.endpoint.model_dir:
            folder = await asyncio.to_thread(precision_of_folder, self.endpoint.model_dir)
        models = tuple(self._describe(name, {**card, **about}, folder) for name, card in cards.items())
        return EngineDescription(self.kind, self.label, text_in(version), models)

    async def load(self) -> EngineLoad:
        """No gauges: only that it answers."""
        await self._cards()
        return EngineLoad()

    async def _cards(self) -> dict[str, dict[str, Any]]:
        """The models of ``/v1/models``: name → card. Of an engine with one model at a time, only that one."""
        body = await self._ask("GET", "/v1/models")
        default = self._flavour.default_model
        if not body and default:
            return {default: {}}
        try:
            listed = msgspec.json.decode(body, type=dict[str, Any])
        except NOT_JSON as error:
            raise self._no_models() from error
        cards = {card["id"]: card for card in cards_in(listed)}
        if listed.get("data") and not cards:
            raise self._no_models()
        if default and len(cards) != 1:
            return {default: {}}
        return cards

    def _no_models(self) -> Broken:
        return Broken("its answer to /v1/models is no list of models", engine=self.endpoint.name)

    def _describe(self, name: str, about: dict[str, Any], folder: tuple[Precision, str]) -> ModelDescription:
        flavour, endpoint = self._flavour, self.endpoint
        precision, scheme = precision_named(_text(about, flavour.dtype), _text(about, flavour.quantization))
        source = "engine"
        if precision is Precision.UNKNOWN and endpoint.precision is not None:
            precision, source = endpoint.precision, "configuration"
        elif precision is Precision.UNKNOWN:
            (precision, scheme), source = folder, "model folder"
        return ModelDescription(
            engine_model=name,
            precision=precision,
            scheme=scheme or endpoint.scheme,
            precision_from="nobody" if precision is Precision.UNKNOWN else source,
            context=_number(about, flavour.context),
            slots=endpoint.slots or flavour.slots,
            capabilities=flavour.capabilities,
        )


def _values(about: dict[str, Any], keys: tuple[str, ...]) -> list[Any]:
    """What stands under the keys; a dot leads into an object."""
    found = []
    for key in keys:
        value: Any = about
        for name in key.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        found.append(value)
    return found


def _text(about: dict[str, Any], keys: tuple[str, ...]) -> str:
    return next((text for value in _values(about, keys) if (text := text_in(value))), "")


def _number(about: dict[str, Any], keys: tuple[str, ...]) -> int | None:
    return next((size for value in _values(about, keys) if (size := size_in(value))), None)
