"""The adapter for Ollama."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from adapters.answers import JoinedAnswer
from adapters.base import Adapter, Answer, Call, Endpoint, EngineDescription, EngineLoad
from adapters.errors import Broken, EngineError, Rejected
from adapters.heard import size_in
from adapters.ollama.api import POLL_TIMEOUT_S, Installed, Ps, Show, Tags, Version, ask
from adapters.ollama.context import DEFAULT_CONTEXT, Contexts
from adapters.ollama.describe import capabilities, description, load_options
from adapters.ollama.embedding import OllamaEmbedding
from adapters.ollama.loads import LoadTimes
from adapters.ollama.request import NativeRequest, native_request
from adapters.ollama.stream import OllamaStream
from adapters.ollama.turn import Turn
from adapters.openai_errors import error_from_response
from adapters.response import Response
from adapters.transport import Transport, TransportLimits
from policies.types import Capability, Operation

_T = TypeVar("_T")

_SHOWN_AT_ONCE = 4
_ERROR_LIMIT = 1024 * 1024
_LATEST = ":latest"
_JSON = (("Content-Type", "application/json"),)
_PROMPT_TOKENS = re.compile(rb"n_prompt_tokens\W+(\d+)")


@dataclass(frozen=True, slots=True)
class _TooLong:
    """A prompt did not fit; how many tokens it has, where Ollama says so (0.32)."""

    prompt_tokens: int | None


class OllamaAdapter(Adapter):
    """One Ollama server. Its models keep their names, but for a ``:latest`` that nobody types.

    The operator's ``options`` may hold ``keep_alive`` and an ``options`` object; a ``num_ctx`` in that one is the only
    context size then. ``slots`` is what OLLAMA_NUM_PARALLEL was set to: Ollama does not tell, 1 is its default.
    """

    kind = "ollama"
    label = "Ollama"

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        limits = TransportLimits(
            connect_timeout_s=endpoint.connect_timeout_s,
            header_timeout_s=endpoint.first_byte_timeout_s,
            read_timeout_s=endpoint.first_byte_timeout_s,
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
        version = await self._ask(Version, "/api/version")
        tags = await self._ask(Tags, "/api/tags")
        ps = await self._ask(Ps, "/api/ps")
        self._version = version.version
        here = (model for model in tags.models or () if model.name and not model.remote_host)
        installed = {self._name(model.name): model for model in here}
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
        return EngineLoad(resident=self._take_ps(await self._ask(Ps, "/api/ps")))

    async def send(self, call: Call) -> Answer:
        model, limit = call.engine_model, self._limit(call)
        try:
            request = native_request(call, self.endpoint.options)
            if request.has_media:
                self._refuse_blind(model)
        except Rejected as error:
            error.engine = self.endpoint.name
            raise
        shown = self._show_of(model)
        num_ctx = self._contexts.choose(
            self._loaded_as(model), request.need, limit=limit, default=shown.num_ctx if shown else None
        )
        while True:
            answer = await self._try(call, request, num_ctx)
            if not isinstance(answer, _TooLong):
                return answer
            larger = self._contexts.larger(num_ctx, answer.prompt_tokens, request.need, limit=limit)
            if larger is None:
                raise self._refuse(request, answer.prompt_tokens, limit)
            num_ctx = larger

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def _try(self, call: Call, request: NativeRequest, num_ctx: int) -> Answer | _TooLong:
        """Send it once. A prompt that is too long for ``num_ctx`` is no error yet."""
        turn = Turn(self._contexts, self._loads, self._loaded_as(call.engine_model), num_ctx)
        try:
            response = await self._transport.request(
                "POST", request.path, body=request.encode(num_ctx), headers=(*_JSON, *call.headers)
            )
            if response.status != 200:
                body = await self._refusal_body(response)
                error = error_from_response(response.status, response.headers, body, secret=self.endpoint.api_key)
                if isinstance(error, Rejected) and error.code == "context_length_exceeded":
                    turn.over(loaded=True)
                    found = _PROMPT_TOKENS.search(body)
                    return _TooLong(int(found[1]) if found else None)
                raise error
        except EngineError as error:
            turn.over()
            error.engine = self.endpoint.name
            raise
        except BaseException:
            turn.over()
            raise
        if call.operation is Operation.EMBEDDINGS:
            return OllamaEmbedding(response, call, turn, self.endpoint)
        stream = OllamaStream(response, call, turn, self.endpoint)
        return stream if call.stream else JoinedAnswer(stream, call.operation)

    async def _ask(self, type_: type[_T], path: str, body: bytes = b"") -> _T:
        return await ask(self._transport, type_, path, self.endpoint.name, body=body, secret=self.endpoint.api_key)

    async def _refusal_body(self, response: Response) -> bytes:
        response.read_timeout_s = POLL_TIMEOUT_S
        try:
            return await response.read(_ERROR_LIMIT)
        except EngineError:
            return b""  # the status alone has to do
        finally:
            response.close()

    def _refuse(self, request: NativeRequest, prompt_tokens: int | None, context: int) -> Rejected:
        tokens = str(prompt_tokens) if prompt_tokens else f"about {request.need.prompt}"
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
            raise Rejected(f"{model} on {self.endpoint.name} takes text only", param="messages", code="unsupported")

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

        async def show(model: Installed) -> Show:
            async with turns:
                return await self._ask(Show, "/api/show", msgspec.json.encode({"model": model.name}))

        new = {model.digest: model for model in installed.values() if model.digest not in self._shown}
        answers = await asyncio.gather(*map(show, new.values()), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, Rejected | Broken):
                raise answer
        found = {d: shown for d, shown in zip(new, answers, strict=True) if isinstance(shown, Show)}
        self._digests = {name: model.digest for name, model in installed.items()}
        kept = {digest: shown for digest, shown in self._shown.items() if digest in self._digests.values()}
        self._shown = kept | found

    def _take_ps(self, ps: Ps) -> frozenset[str]:
        """The names of all models that need no loading now."""
        running = {self._name(model.name): size_in(model.context_length) or 0 for model in ps.models or ()}
        loaded = {self._loaded_as(name): context for name, context in running.items()}
        self._contexts.seen(loaded)
        return frozenset(running) | {name for name in self._digests if self._loaded_as(name) in loaded}

    def _loaded_as(self, model: str) -> str:
        shown = self._show_of(model)
        return (shown.weights if shown else "") or model

    def _name(self, name: str) -> str:
        return name if name in self.endpoint.models else name.removesuffix(_LATEST)
