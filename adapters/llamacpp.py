"""The adapter for llama.cpp's ``llama-server``.

When it notices a leaving client: at its next write, or between two prompt batches once it has written nothing to
anyone for a second. So it is always asked for a stream with ``return_progress``, which makes it write after each batch,
and its gauges are read seldom: each reading restarts that second.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from pathlib import PurePath
from typing import Any, ClassVar, Final

import msgspec

from adapters.base import Call, EngineDescription, EngineLoad, ModelDescription
from adapters.body import BodyError
from adapters.errors import Broken, Rejected
from adapters.gguf_types import precision_of, scheme_of
from adapters.heard import NOT_JSON, cards_in, object_in, size_in, text_in
from adapters.openai_protocol import OpenAIAdapter
from adapters.prometheus import read_gauges
from adapters.relay import StreamQuirks
from policies.types import Capability, Operation, Precision

_TEXT: Final = frozenset(
    [Capability.CHAT, Capability.COMPLETION, Capability.JSON_OBJECT, Capability.JSON_SCHEMA, Capability.LOGPROBS]
)
_CHOICES_SINCE_BUILD: Final = 7300
"""Older builds ignore ``n`` silently."""

_BUILD: Final = re.compile(r"b(\d+)")


class LlamaCppAdapter(OpenAIAdapter):
    """One llama-server: usually one model, in fixed slots of a fixed context."""

    kind = "llamacpp"
    label = "llama.cpp"
    stream_fields: ClassVar[dict[str, object]] = {"return_progress": True}
    quirks: ClassVar[StreamQuirks] = StreamQuirks(usage_per_choice=True)

    _embeds: tuple[str, bool] | None = None
    """Whether the model (named by its digest) embeds: asked once, since only a trial tells."""
    _has_metrics: bool = True

    async def describe(self) -> EngineDescription:
        await self._ask("GET", "/health")
        props, listed = await asyncio.gather(self._ask_if_there("/props"), self._ask_json("GET", "/v1/models"))
        self._has_metrics = props.get("endpoint_metrics", True) is True
        cards = cards_in(listed)
        if not cards:
            raise Broken("it lists no model", engine=self.endpoint.name)
        version = _version(props, cards[0])
        models = [await self._describe_model(card, props, version) for card in cards]
        return EngineDescription(self.kind, self.label, version, tuple(models))

    async def load(self) -> EngineLoad:
        if self._has_metrics:
            try:
                gauges = read_gauges(await self._ask("GET", "/metrics"))
            except Rejected:
                self._has_metrics = False
            else:
                return EngineLoad(
                    running=gauges.total("llamacpp:requests_processing"),
                    waiting=gauges.total("llamacpp:requests_deferred"),
                    kv_usage=gauges.highest("llamacpp:kv_cache_usage_ratio"),
                )
        try:
            slots = msgspec.json.decode(await self._ask("GET", "/slots"), type=list[dict[str, Any]])
        except Rejected:
            return EngineLoad()
        except NOT_JSON as error:
            raise Broken("its answer to /slots is not a list", engine=self.endpoint.name) from error
        return EngineLoad(running=sum(slot.get("is_processing") is True for slot in slots))

    async def count_tokens(self, call: Call) -> int | None:
        prompt = await self._prompt_text(call)
        if prompt is None:
            return None
        body = {"content": prompt, "add_special": True, "parse_special": True}
        tokens = (await self._ask_json("POST", "/tokenize", body)).get("tokens")
        return len(tokens) if isinstance(tokens, list) else None

    async def _prompt_text(self, call: Call) -> str | None:
        """The text that the model will read; ``None`` where it is not text, or the template refuses it."""
        if call.operation is Operation.COMPLETION:
            try:
                return call.body.get("prompt", str)  # type: ignore[no-any-return]
            except BodyError:
                return None
        if call.operation is not Operation.CHAT:
            return None
        try:
            data = await self._ask("POST", "/apply-template", call.body.encode())
            return msgspec.json.decode(data, type=dict[str, str]).get("prompt")
        except (Rejected, Broken, *NOT_JSON):
            return None

    async def _describe_model(self, card: dict[str, Any], props: dict[str, Any], version: str) -> ModelDescription:
        meta = object_in(card.get("meta"))
        endpoint = self.endpoint
        file_type = text_in(props.get("model_ftype")) or text_in(meta.get("ftype"))
        precision, source = precision_of(file_type), "engine"
        if precision is Precision.UNKNOWN and endpoint.precision is not None:
            precision, source = endpoint.precision, "configuration"
        name = PurePath(text_in(props.get("model_path")) or card["id"]).name
        digest = ":".join(str(part) for part in (name, meta.get("size", ""), meta.get("n_params", ""), file_type))
        return ModelDescription(
            engine_model=card["id"],
            precision=precision,
            scheme=scheme_of(file_type) or endpoint.scheme,
            precision_from=source if precision is not Precision.UNKNOWN else "nobody",
            context=size_in(_defaults(props).get("n_ctx")) or size_in(meta.get("n_ctx")),
            slots=size_in(props.get("total_slots")) or endpoint.slots,
            capabilities=await self._capabilities(props, version, card["id"], digest),
            digest=digest,
            settings=_settings(props, _tags(card)),
        )

    async def _capabilities(
        self, props: dict[str, Any], version: str, model: str, digest: str
    ) -> frozenset[Capability]:
        if await self._is_for_embeddings(model, digest):
            return frozenset({Capability.EMBEDDINGS})
        found = set(_TEXT)
        if _has_tools(props):
            found |= {Capability.TOOLS, Capability.TOOL_CHOICE}
        modalities = object_in(props.get("modalities"))
        found |= {kind for kind in (Capability.VISION, Capability.AUDIO) if modalities.get(kind.value) is True}
        build = _BUILD.match(version)
        ignores_n = build is not None and 0 < int(build[1]) < _CHOICES_SINCE_BUILD
        if (size_in(props.get("total_slots")) or 1) > 1 and not ignores_n:
            found.add(Capability.CHOICES)
        return frozenset(found)

    async def _is_for_embeddings(self, model: str, digest: str) -> bool:
        """Ask for the embedding of nothing: refused by all, but for different reasons. It computes nothing."""
        if self._embeds is None or self._embeds[0] != digest:
            try:
                await self._ask("POST", "/v1/embeddings", msgspec.json.encode({"model": model, "input": []}))
                able = True
            except Rejected as error:
                able = error.code != "unsupported" and "pooling" not in error.message.lower()
            self._embeds = (digest, able)
        return self._embeds[1]


def _has_tools(props: dict[str, Any]) -> bool:
    """Whether the chat template knows tools: one that does not drops them silently. Older builds show only the text."""
    caps = props.get("chat_template_caps")
    if isinstance(caps, dict) and "supports_tools" in caps:
        return caps["supports_tools"] is True and caps.get("supports_tool_calls") is True
    return "tools" in text_in(props.get("chat_template"))


def _tags(card: dict[str, Any]) -> list[str]:
    """Words that whoever started the server gave the model. ``adapters.llama_server`` puts its options there."""
    tags = card.get("tags")
    return sorted(str(tag) for tag in tags) if isinstance(tags, list) else []


def _version(props: dict[str, Any], card: dict[str, Any]) -> str:
    """The build; that of xllamacpp does not know its own number, but its server says the package's."""
    build = text_in(props.get("build_info")) or "unknown"
    package = next((tag for tag in _tags(card) if tag.startswith("xllamacpp-")), "")
    return package.replace("-", " ", 1) if package and build.startswith(("b0", "unknown")) else build


def _defaults(props: dict[str, Any]) -> dict[str, Any]:
    return object_in(props.get("default_generation_settings"))


def _settings(props: dict[str, Any], tags: list[str]) -> str:
    """What is seen of the settings that change speed or output."""
    defaults = _defaults(props)
    parts = {
        "slots": props.get("total_slots"),
        "ctx": defaults.get("n_ctx"),
        "template": f"{zlib.crc32(text_in(props.get('chat_template')).encode()):08x}",
        "speculative": object_in(defaults.get("params")).get("speculative.types"),
    }
    told = [f"{name}={value}" for name, value in parts.items() if value not in (None, "none")]
    return " ".join([*told, *tags])
