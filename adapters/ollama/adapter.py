"""The adapter for Ollama."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import msgspec

from adapters.answers import JoinedAnswer
from adapters.base import Adapter, Answer, Call, Endpoint, EngineDescription, EngineLoad
from adapters.errors import Broken, EngineError, Rejected
from adapters.ollama.api import Installed, Ps, Show, Tags, Version, ask
from adapters.ollama.context import DEFAULT_CONTEXT, Contexts
from adapters.ollama.describe import capabilities, description, load_options
from adapters.ollama.embedding import OllamaEmbedding
from adapters.ollama.errors import OllamaFault, fault_error, unwrap
from adapters.ollama.loads import LoadTimes
from adapters.ollama.request import NativeRequest, native_request
from adapters.ollama.stream import OllamaStream
from adapters.ollama.turn import Turn
from adapters.transport import Transport, TransportLimits
from policies.types import Capability, Operation

_SHOWN_AT_ONCE = 4
_ERROR_LIMIT = 1024 * 1024
_LATEST = ":latest"
_JSON = (("Content-Type", "application/json"),)


class OllamaAdapter(Adapter):
    """One Ollama server. Its models keep their names, but for a ``:latest`` that nobody types.

    The operator's ``options`` may hold ``keep_alive`` and an ``options`` object; a ``num_ctx`` in that one is the only
    context size then. ``slots`` is what OLLAMA_NUM_PARALLEL was set to: Ollama does not tell, 1 is its default.
    """

    kind: ClassVar[str] = "ollama"
    label: ClassVar[str] = "Ollama"
    default_port: ClassVar[int | None] = 11434

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        limits = TransportLimits(
            connect_timeout_s=endpoint.connect_timeout_s,
            header_timeout_s=endpoint.first_byte_timeout_s,
            read_timeout_s=endpoint.silence_timeout_s,
        )
        headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else None
        self._transport = Transport(endpoint.url, limits=limits, headers=headers, verify=endpoint.verify_tls)
        fixed = load_options(endpoint).get("num_ctx")
        self._fixed_context = fixed if isinstance(fixed, int) else None
        self._contexts = Contexts(self._fixed_context)
        self._loads = LoadTimes()
        self._version = ""
        self._digests: dict[str, str] = {}
        self._shown: dict[str, Show] = {}

    async def describe(self) -> EngineDescription:
        transport, engine = self._transport, self.endpoint.name
        version, tags, ps = await asyncio.gather(
            ask(transport, Version, "/api/version", engine),
            ask(transport, Tags, "/api/tags", engine),
            ask(transport, Ps, "/api/ps", engine),
        )
        self._version = version.version
        installed = {self._name(model.name): model for model in tags.models or () if not model.remote_host}
        await self._show_new(installed)
        resident = self._take_ps(ps)
        models = tuple(
            description(
                name,
                model,
                self._shown[model.digest],
                endpoint=self.endpoint,
                version=version.version,
                resident=name in resident,
            )
            for name, model in installed.items()
            if model.digest in self._shown
        )
        return EngineDescription(self.kind, self.label, version.version, models)

    async def load(self) -> EngineLoad:
        """Only which models are resident: Ollama has no gauges."""
        return EngineLoad(resident=self._take_ps(await ask(self._transport, Ps, "/api/ps", self.endpoint.name)))

    async def send(self, call: Call) -> Answer:
        request = native_request(call, self.endpoint.options)
        model, limit = call.engine_model, self._limit(call)
        if request.has_media:
            self._refuse_blind(model)
        shown = self._show_of(model)
        num_ctx = self._contexts.choose(
            self._loaded_as(model), request.need, limit=limit, default=shown.num_ctx if shown else None
        )
        while True:
            answer = await self._try(call, request, num_ctx)
            if not isinstance(answer, OllamaFault):
                return answer
            larger = self._contexts.larger(num_ctx, answer.prompt_tokens, request.need, limit=limit)
            if larger is None:
                raise self._too_long(request, answer, limit)
            num_ctx = larger

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def _try(self, call: Call, request: NativeRequest, num_ctx: int) -> Answer | OllamaFault:
        """Send it once. A prompt that is too long for ``num_ctx`` is no error yet: the fault is returned."""
        engine = self.endpoint.name
        turn = Turn(self._contexts, self._loads, self._loaded_as(call.engine_model), num_ctx)
        try:
            response = await self._transport.request("POST", request.path, body=request.encode(num_ctx), headers=_JSON)
            if response.status != 200:
                fault = unwrap(await response.read(_ERROR_LIMIT))
                error = fault_error(response.status, fault, engine)
                if isinstance(error, Rejected) and error.code == "context_length_exceeded":
                    turn.over(loaded=True)
                    return fault
                raise error
        except EngineError as error:
            turn.over()
            error.engine = engine
            raise
        except BaseException:
            turn.over()
            raise
        if call.operation is Operation.EMBEDDINGS:
            return OllamaEmbedding(response, call, turn, engine=engine)
        stream = OllamaStream(response, call, turn, engine=engine)
        return stream if call.stream else JoinedAnswer(stream, call.operation)

    def _too_long(self, request: NativeRequest, fault: OllamaFault, context: int) -> Rejected:
        tokens = str(fault.prompt_tokens) if fault.prompt_tokens else f"about {request.need.prompt}"
        return Rejected(
            f"the prompt has {tokens} tokens, more than the context of {context} tokens that the model has on "
            f"{self.endpoint.name}",
            engine=self.endpoint.name,
            param="input" if request.path == "/api/embed" else "messages",
            code="context_length_exceeded",
        )

    def _refuse_blind(self, model: str) -> None:
        """Ollama 0.24 answers as if there were no image when the model cannot see."""
        shown = self._show_of(model)
        if shown is not None and not capabilities(shown, self._version) & {Capability.VISION, Capability.AUDIO}:
            raise Rejected(
                f"{model} on {self.endpoint.name} takes text only",
                engine=self.endpoint.name,
                param="messages",
                code="unsupported",
            )

    def _limit(self, call: Call) -> int:
        """The largest context that the model may have here."""
        if self._fixed_context is not None:
            return self._fixed_context
        shown = self._show_of(call.engine_model)
        return (shown.context if shown else None) or call.context or DEFAULT_CONTEXT

    def _show_of(self, model: str) -> Show | None:
        return self._shown.get(self._digests.get(model, ""))

    async def _show_new(self, installed: dict[str, Installed]) -> None:
        """Ask about each model once per digest; one that Ollama cannot read is left out, not the whole engine."""
        turns = asyncio.Semaphore(_SHOWN_AT_ONCE)

        async def show(model: Installed) -> tuple[str, Show] | None:
            async with turns:
                try:
                    body = msgspec.json.encode({"model": model.name})
                    return model.digest, await ask(self._transport, Show, "/api/show", self.endpoint.name, body=body)
                except (Rejected, Broken):
                    return None

        new = {model.digest: model for model in installed.values() if model.digest not in self._shown}
        answers = await asyncio.gather(*(show(model) for model in new.values()))
        self._digests = {name: model.digest for name, model in installed.items()}
        kept = {digest: shown for digest, shown in self._shown.items() if digest in self._digests.values()}
        self._shown = kept | dict(answer for answer in answers if answer is not None)

    def _take_ps(self, ps: Ps) -> frozenset[str]:
        """The names of all models that need no loading now."""
        running = {self._name(model.name): model.context_length for model in ps.models or ()}
        loaded = {self._loaded_as(name): context for name, context in running.items()}
        self._contexts.seen(loaded)
        return frozenset(running) | {name for name in self._digests if self._loaded_as(name) in loaded}

    def _loaded_as(self, model: str) -> str:
        shown = self._show_of(model)
        return (shown.weights if shown else "") or model

    def _name(self, name: str) -> str:
        return name if name in self.endpoint.models else name.removesuffix(_LATEST)
