"""The adapter for hosted APIs, through litellm: an optional extra, imported only when one is configured."""

from __future__ import annotations

import asyncio
import contextlib
import os
from importlib import import_module, metadata
from typing import Any, ClassVar, Final

from adapters.base import Adapter, Answer, Call, Endpoint, EngineDescription, EngineLoad, ModelDescription
from adapters.body import BodyError
from adapters.errors import EngineError, Rejected, TimedOut, Unreachable
from adapters.hosted_answers import HostedBody, HostedStream
from adapters.hosted_errors import engine_error
from policies.types import Capability, Operation

_MISSING: Final = "hosted APIs need litellm: pip install 'paceline[hosted]'"
_FUNCTIONS: Final = {
    Operation.CHAT: "acompletion",
    Operation.COMPLETION: "atext_completion",
    Operation.EMBEDDINGS: "aembedding",
}
_PARAMETERS: Final = frozenset(
    [
        *("messages", "prompt", "input", "temperature", "top_p", "n", "stop", "max_tokens", "max_completion_tokens"),
        *("presence_penalty", "frequency_penalty", "logit_bias", "user", "response_format", "seed", "tools"),
        *("tool_choice", "parallel_tool_calls", "logprobs", "top_logprobs", "reasoning_effort", "verbosity"),
        *("modalities", "audio", "prediction", "functions", "function_call", "thinking", "suffix", "echo", "best_of"),
        *("dimensions", "encoding_format"),
    ]
)
"""Fields that litellm is given by name. All others go into the body for the provider, never to litellm itself: a
client's ``api_base`` would send the operator's key to an address of the client's choice."""

_OURS: Final = frozenset(["model", "stream", "stream_options"])
_KEPT: Final = frozenset(["baggage"])
"""Headers that say who asks, and stay in the house; a trace's numbers mean nothing elsewhere."""

_MODES: Final = {
    "chat": Capability.CHAT,
    "responses": Capability.CHAT,
    "completion": Capability.COMPLETION,
    "embedding": Capability.EMBEDDINGS,
}
_SUPPORTED: Final = {
    "supports_function_calling": frozenset([Capability.TOOLS]),
    "supports_tool_choice": frozenset([Capability.TOOL_CHOICE]),
    "supports_response_schema": frozenset([Capability.JSON_SCHEMA, Capability.JSON_OBJECT]),
    "supports_vision": frozenset([Capability.VISION]),
    "supports_audio_input": frozenset([Capability.AUDIO]),
}
_BY_PARAMETER: Final = {"logprobs": Capability.LOGPROBS, "n": Capability.CHOICES}


class HostedAdapter(Adapter):
    """One provider, or one key of it. Its models are those that the operator names, as litellm spells them.

    ``url`` replaces the provider's own address; ``options`` are litellm's own parameters (``api_version``,
    ``vertex_project``, …), or fields for requests that do not have them. Capabilities and context come from litellm's
    table of models; a model that is not in it can chat, and whatever else the operator says.
    """

    kind = "hosted"
    label = "Hosted API"
    always_stream: ClassVar[bool] = False

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._library: Any = None
        self._importing = asyncio.Lock()
        self._closing: set[asyncio.Task[None]] = set()
        self._foreign: tuple[type[Exception], ...] = ()

    async def describe(self) -> EngineDescription:
        library = await self._litellm()
        models = tuple(self._describe(library, name) for name in self.endpoint.models)
        return EngineDescription(self.kind, self.label, metadata.version("litellm"), models)

    async def load(self) -> EngineLoad:
        """A provider does not tell; and asking it would cost."""
        await self._litellm()
        return EngineLoad()

    async def send(self, call: Call) -> Answer:
        library = await self._litellm()
        stream = call.stream and call.operation is not Operation.EMBEDDINGS
        arguments = self._arguments(call)
        if stream:
            arguments |= {"stream": True, "stream_options": {"include_usage": True}}
        limit_s = self.endpoint.first_byte_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                result = await getattr(library, _FUNCTIONS[call.operation])(**arguments)
        except TimeoutError:
            raise TimedOut(f"the provider did not answer within {limit_s:g} s", engine=self.endpoint.name) from None
        except self._foreign as error:
            raise self._translate(error) from error
        if not stream:
            return HostedBody(result, call)
        return HostedStream(
            aiter(result),
            call,
            silence_s=self.endpoint.silence_timeout_s,
            foreign=self._foreign,
            translate=self._translate,
            on_close=self._close_later,
        )

    async def aclose(self) -> None:
        await asyncio.gather(*self._closing)

    def _arguments(self, call: Call) -> dict[str, Any]:
        endpoint, body = self.endpoint, call.body
        try:
            fields = {name: body.get(name) for name in body.fields if name not in _OURS}
        except BodyError as error:
            raise Rejected(error.message, engine=endpoint.name, param=error.param) from None
        named = {name: value for name, value in fields.items() if name in _PARAMETERS and value is not None}
        others = {name: value for name, value in fields.items() if name not in _PARAMETERS}
        arguments: dict[str, Any] = {**endpoint.options, **named}
        if others:
            arguments["extra_body"] = others
        arguments |= {"model": call.engine_model, "max_retries": 0, "num_retries": 0}
        if endpoint.api_key:
            arguments["api_key"] = endpoint.api_key
        if endpoint.url:
            arguments["api_base"] = endpoint.url
        passed_on = {name: value for name, value in call.headers if name not in _KEPT}
        arguments["extra_headers"] = {**passed_on, **arguments.get("extra_headers", {})}
        return arguments

    def _describe(self, library: Any, model: str) -> ModelDescription:
        try:
            info = library.get_model_info(model)
        except library.exceptions.ModelNotMappedError:
            return ModelDescription(model, capabilities=frozenset([Capability.CHAT]))
        capabilities = {_MODES[info["mode"]]} if info.get("mode") in _MODES else set()
        if Capability.CHAT in capabilities:
            capabilities.update(*(group for flag, group in _SUPPORTED.items() if info.get(flag)))
            parameters = info.get("supported_openai_params") or ()
            capabilities.update(capability for name, capability in _BY_PARAMETER.items() if name in parameters)
        return ModelDescription(model, context=info.get("max_input_tokens"), capabilities=frozenset(capabilities))

    async def _litellm(self) -> Any:
        """The library, imported in a thread at its first use: that takes seconds."""
        async with self._importing:
            if self._library is None:
                # Without this it fetches its table of models from the network while it is imported.
                os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
                try:
                    library: Any = await asyncio.to_thread(import_module, "litellm")
                except ImportError as error:
                    raise Unreachable(_MISSING, engine=self.endpoint.name) from error
                library.telemetry = False
                library.suppress_debug_info = True
                self._foreign = (import_module("openai").OpenAIError, import_module("httpx").HTTPError, ValueError)
                self._library = library
        return self._library

    def _translate(self, error: Exception) -> EngineError:
        return engine_error(error, engine=self.endpoint.name, secret=self.endpoint.api_key)

    def _close_later(self, stream: Any) -> None:
        """Close a stream whose reader is done with it; ``aclose`` waits for what is still being closed."""
        task = asyncio.get_running_loop().create_task(self._close(stream))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self, stream: Any) -> None:
        with contextlib.suppress(*self._foreign):  # it may be broken: that may be why it is closed
            await stream.aclose()
