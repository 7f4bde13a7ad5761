"""The adapter for vLLM. It notices a leaving client at once, streaming or not.

Which requests it takes depends on flags and on the model, and no path tells. So each model is asked once, with requests
that it has to refuse before it computes anything: their ``max_tokens`` is beyond every context. The reason tells.
"""

from __future__ import annotations

import asyncio
from pathlib import PurePosixPath
from typing import Any, ClassVar, Final

import msgspec

from adapters.base import Call, Endpoint, EngineDescription, EngineLoad, EngineTotals, ModelDescription
from adapters.errors import Broken, EngineError, Rejected, TimedOut
from adapters.heard import cards_in, count_in, size_in, text_in
from adapters.model_folder import digest_of_folder, precision_of_folder
from adapters.openai_protocol import OpenAIAdapter, has_text_prompt
from adapters.prometheus import read_gauges, read_label
from policies.types import Capability, Operation, Precision

_GENERATES: Final = frozenset(
    [
        Capability.COMPLETION,
        Capability.JSON_OBJECT,
        Capability.JSON_SCHEMA,
        Capability.LOGPROBS,
        Capability.CHOICES,
    ]
)
_SETTINGS: Final = "vllm:cache_config_info"
_BEYOND_EVERY_CONTEXT: Final = 1_000_000_000
_TOOL: Final = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
_PIXEL: Final = "data:image/gif;base64,R0lGODdhAQABAIAAAAAAAAAAACwAAAAAAQABAAACAkQBADs="
_TRIALS: Final[dict[Capability, dict[str, object]]] = {
    Capability.CHAT: {"messages": [{"role": "user", "content": "x"}]},
    Capability.TOOLS: {"messages": [{"role": "user", "content": "x"}], "tools": [_TOOL]},
    Capability.TOOL_CHOICE: {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [_TOOL],
        "tool_choice": "required",
    },
    Capability.VISION: {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": _PIXEL}}]}],
    },
}


class VllmAdapter(OpenAIAdapter):
    """One vLLM server: usually one model, whose requests share a batch that grows as they come."""

    always_stream: ClassVar[bool] = False  # a leaving client is noticed at once, streaming or not
    lingers_s: ClassVar[float] = 1.0  # its worker asks in a loop whether there is more (seen with 0.32)
    kind = "vllm"
    label = "vLLM"

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._tried: dict[str, frozenset[Capability]] = {}

    async def describe(self) -> EngineDescription:
        try:
            version, listed, cache_block = await asyncio.gather(
                self._ask_json("GET", "/version"), self._ask_json("GET", "/v1/models"), self._cache_block()
            )
            models = [await self._describe_model(card, cache_block) for card in cards_in(listed)]
        except EngineError:
            self._tried.clear()  # it may come back with other flags
            raise
        if not models:
            raise Broken("it lists no model", engine=self.endpoint.name)
        return EngineDescription(self.kind, self.label, text_in(version.get("version")), tuple(models))

    async def load(self) -> EngineLoad:
        gauges = read_gauges(await self._ask("GET", "/metrics"))
        return EngineLoad(
            running=gauges.total("vllm:num_requests_running"),
            waiting=gauges.total("vllm:num_requests_waiting"),
            kv_usage=gauges.highest("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        )

    async def totals(self) -> EngineTotals | None:
        gauges = read_gauges(await self._ask("GET", "/metrics"))
        sums = [gauges.sum(f"vllm:request_{phase}_time_seconds_sum") for phase in ("queue", "prefill", "decode")]
        requests = gauges.sum("vllm:request_queue_time_seconds_count")
        if requests is None or None in sums:
            return None
        queue_s, prefill_s, decode_s = (each or 0.0 for each in sums)
        return EngineTotals(requests, queue_s, prefill_s, decode_s)

    async def count_tokens(self, call: Call) -> int | None:
        fields = {"messages", "tools", "chat_template_kwargs"} if call.operation is Operation.CHAT else {"prompt"}
        if call.operation is Operation.EMBEDDINGS or (
            call.operation is Operation.COMPLETION and not has_text_prompt(call)
        ):
            return None
        body = {name: value for name, value in call.body.fields.items() if name in fields}
        try:
            answer = await self._ask_json("POST", "/tokenize", {**body, "model": call.engine_model})
        except Rejected:
            return None
        return count_in(answer.get("count"))

    async def _describe_model(self, card: dict[str, Any], cache_block: int) -> ModelDescription:
        endpoint, name, root = self.endpoint, card["id"], text_in(card.get("root"))
        folder = endpoint.model_dir or root
        (found, scheme), digest = await asyncio.gather(
            asyncio.to_thread(precision_of_folder, folder), asyncio.to_thread(digest_of_folder, folder)
        )
        if endpoint.precision is not None:
            precision, source = endpoint.precision, "configuration"
        elif found is Precision.FP32:  # vLLM computes such a model in 16 bits unless told otherwise: nobody knows which
            precision, source = Precision.UNKNOWN, "nobody"
        else:
            precision, source = found, "nobody" if found is Precision.UNKNOWN else "model folder"
        context = size_in(card.get("max_model_len"))
        if name not in self._tried:
            self._tried[name] = await self._try(name)
        return ModelDescription(
            engine_model=name,
            precision=precision,
            scheme=endpoint.scheme or scheme,
            precision_from=source,
            context=context,
            slots=endpoint.slots,
            capabilities=self._tried[name],
            digest=f"{PurePosixPath(root).name or name}:{digest}",
            settings=f"ctx={context}",
            cache_block=cache_block,
        )

    async def _cache_block(self) -> int:
        """``ModelDescription.cache_block`` as its gauge of settings says: 128 on a CPU and 16 on a GPU unless set."""
        try:
            metrics = await self._ask("GET", "/metrics")
        except EngineError:
            return 1  # they can be closed to us where all else is open
        if read_label(metrics, _SETTINGS, "enable_prefix_caching") == "False":
            return 0
        size = read_label(metrics, _SETTINGS, "block_size") or ""
        return int(size) if size.isdecimal() else 1

    async def _try(self, model: str) -> frozenset[Capability]:
        """What the engine takes for this model. Raises EngineError when it does not say."""
        embeds, *able = await asyncio.gather(
            self._embeds(model), *(self._takes(model, fields) for fields in _TRIALS.values())
        )
        if embeds:
            return frozenset({Capability.EMBEDDINGS})
        return _GENERATES | {capability for capability, takes in zip(_TRIALS, able, strict=True) if takes}

    async def _takes(self, model: str, fields: dict[str, object]) -> bool:
        body = {"model": model, **fields, "max_tokens": _BEYOND_EVERY_CONTEXT}
        try:
            await self._ask("POST", "/v1/chat/completions", msgspec.json.encode(body))
        except Rejected as refusal:
            return refusal.code == "context_length_exceeded"
        except TimedOut:
            pass  # it began to compute after all; leaving has stopped it
        return True

    async def _embeds(self, model: str) -> bool:
        try:
            await self._ask("POST", "/v1/embeddings", msgspec.json.encode({"model": model, "input": []}))
        except Rejected as refusal:
            return refusal.code not in ("unsupported", "model_not_found")
        return True
