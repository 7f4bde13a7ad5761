"""The adapter for the built-in engine: all that it is stands in its ``/v1/models``, all that it did in its timings.

It notices a leaving client at its next step, streaming or not.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from adapters.base import Call, EngineDescription, EngineLoad, ModelDescription
from adapters.errors import Broken, Rejected
from adapters.heard import cards_in, count_in, size_in, text_in
from adapters.openai_protocol import OpenAIAdapter, has_text_prompt
from adapters.prometheus import read_gauges
from policies.types import Capability, Operation, Precision

_GENERATES: Final = frozenset(
    [
        Capability.CHAT,
        Capability.COMPLETION,
        Capability.EMBEDDINGS,
        Capability.TOOLS,
        Capability.TOOL_CHOICE,
        Capability.JSON_OBJECT,
        Capability.JSON_SCHEMA,
        Capability.LOGPROBS,
        Capability.CHOICES,
    ]
)
_CHATS: Final = frozenset([Capability.CHAT, Capability.TOOLS, Capability.TOOL_CHOICE])
_COUNTED: Final = {
    Operation.CHAT: ("messages", "tools", "chat_template_kwargs"),
    Operation.COMPLETION: ("prompt",),
}
"""The fields of a request that make its prompt."""


class BuiltinAdapter(OpenAIAdapter):
    """One process of the built-in engine: one model, whose requests share a batch."""

    always_stream: ClassVar[bool] = False
    kind = "builtin"
    label = "built-in engine"

    async def describe(self) -> EngineDescription:
        await self._ask("GET", "/ready")
        listed = await self._ask_json("GET", "/v1/models")
        cards = cards_in(listed)
        if not cards:
            raise Broken("it lists no model", engine=self.endpoint.name)
        models = tuple(self._describe_model(card) for card in cards)
        return EngineDescription(self.kind, self.label, text_in(cards[0].get("version")), models)

    async def load(self) -> EngineLoad:
        gauges = read_gauges(await self._ask("GET", "/metrics"))
        return EngineLoad(
            running=gauges.total("paceline_engine_requests_running"),
            waiting=gauges.total("paceline_engine_requests_waiting"),
            kv_usage=gauges.highest("paceline_engine_cache_usage_ratio"),
        )

    async def count_tokens(self, call: Call) -> int | None:
        fields = _COUNTED.get(call.operation)
        if fields is None or (call.operation is Operation.COMPLETION and not has_text_prompt(call)):
            return None
        body = {name: call.body.fields[name] for name in fields if name in call.body}
        try:
            count = (await self._ask_json("POST", "/tokenize", {**body, "model": call.engine_model})).get("count")
        except Rejected:
            return None
        return count_in(count)

    def _describe_model(self, card: dict[str, Any]) -> ModelDescription:
        precision = next((each for each in Precision if each == card.get("precision")), Precision.UNKNOWN)
        scheme = _named(card.get("scheme"))
        cache_block = count_in(card.get("cache_block"))
        return ModelDescription(
            engine_model=card["id"],
            precision=precision,
            scheme="" if scheme == precision else scheme,
            precision_from="nobody" if precision is Precision.UNKNOWN else "engine",
            context=size_in(card.get("context")),
            slots=size_in(card.get("slots")),
            capabilities=_GENERATES - _CHATS if card.get("chat") is False else _GENERATES,
            digest=text_in(card.get("digest")),
            settings=" ".join(f"{name}={card[name]}" for name in ("device", "kv_cache", "threads") if card.get(name)),
            cache_block=1 if cache_block is None else cache_block,
        )


def _named(scheme: object) -> str:
    """A scheme's name. What follows it is how it is computed, which is measured anew at each start."""
    return text_in(scheme).partition(":")[0].strip()
