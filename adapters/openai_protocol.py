"""The base of all adapters whose engine speaks OpenAI's protocol: what differs between them is data, or a method."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

import msgspec

from adapters.answers import JoinedAnswer, StreamAnswer, WholeAnswer
from adapters.base import Adapter, Answer, Call, Endpoint, Outcome
from adapters.body import BodyError
from adapters.errors import Broken, EngineError, Rejected, TimedOut
from adapters.heard import NOT_JSON
from adapters.openai_errors import error_from_event, error_from_response
from adapters.relay import Relay, StreamQuirks
from adapters.response import Response
from adapters.transport import Transport, TransportLimits
from policies.types import Operation

POLL_LIMIT_S: Final = 5.0
"""For a question about the engine itself, and for the body of a refusal."""

_MAX_REFUSAL_BYTES: Final = 1024 * 1024
_MAX_POLL_BYTES: Final = 16 * 1024 * 1024

_PATHS: Final = {
    Operation.CHAT: "/v1/chat/completions",
    Operation.COMPLETION: "/v1/completions",
    Operation.EMBEDDINGS: "/v1/embeddings",
}


_STREAM_FIELDS: Final = frozenset({"stream", "stream_options"})


class OpenAIAdapter(Adapter):
    """Sends calls; an engine's adapter adds ``describe`` and ``load``."""

    stream_fields: ClassVar[dict[str, object]] = {}
    """Fields of each streamed request, where the client has not set them."""
    quirks: ClassVar[StreamQuirks] = StreamQuirks()

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._transport = Transport(
            endpoint.url.rstrip("/").removesuffix("/v1"),
            limits=TransportLimits(
                connect_timeout_s=endpoint.connect_timeout_s,
                header_timeout_s=endpoint.first_byte_timeout_s,
                read_timeout_s=endpoint.first_byte_timeout_s,
            ),
            headers={"authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {},
            verify=endpoint.verify_tls,
        )

    async def send(self, call: Call) -> Answer:
        streamed = (call.stream or self.always_stream) and call.operation is not Operation.EMBEDDINGS
        try:
            response = await self._transport.request(
                "POST",
                _PATHS[call.operation],
                body=self._body(call, streamed),
                headers=(("content-type", "application/json"), *call.headers),
            )
            if response.status != 200:
                raise await self._refusal(response)
            whole = not streamed or response.headers.get("content-type", "").startswith("application/json")
            if whole and call.stream:
                raise await self._not_a_stream(response)
            return self._answer(call, response, streamed=not whole)
        except EngineError as error:
            error.engine = self.endpoint.name
            raise

    async def aclose(self) -> None:
        await self._transport.aclose()

    def _body(self, call: Call, streamed: bool) -> bytes:
        """The client's body with our few fields; what the client wrote beside them stays byte for byte."""
        fields: dict[str, object] = {"model": call.engine_model}
        extras = self.endpoint.options
        if streamed:
            extras = {**self.stream_fields, **extras}
            fields["stream"] = True
            fields["stream_options"] = {**_client_stream_options(call), "include_usage": True}
        fields.update((name, value) for name, value in extras.items() if name not in call.body)
        return call.body.encode(fields, drop=frozenset() if streamed else _STREAM_FIELDS)

    def _answer(self, call: Call, response: Response, *, streamed: bool) -> Answer:
        engine, secret, outcome = self.endpoint.name, self.endpoint.api_key, Outcome()
        if not streamed:
            return WholeAnswer(response, engine, outcome, call.model, secret)
        relay = Relay(
            call.model,
            outcome,
            asyncio.get_running_loop().time,
            include_usage=call.include_usage or not call.stream,
            choices=_choices(call),
            quirks=self.quirks,
            secret=secret,
        )
        stream = StreamAnswer(response, engine, outcome, relay, self.endpoint.silence_timeout_s)
        return stream if call.stream else JoinedAnswer(stream, call.operation)

    async def _refusal(self, response: Response) -> EngineError:
        body = await _read_refusal(response)
        return error_from_response(response.status, response.headers, body, secret=self.endpoint.api_key)

    async def _not_a_stream(self, response: Response) -> EngineError:
        """The error in a body that came in place of a stream."""
        try:
            error = msgspec.json.decode(await _read_refusal(response), type=dict[str, Any]).get("error")
        except NOT_JSON:
            error = None
        if error:
            return error_from_event(error, secret=self.endpoint.api_key)
        return Broken("it was asked for a stream and answered with one body")

    # Questions about the engine itself

    async def _ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The body of a side path. Raises EngineError, Rejected for a path that the engine does not have."""
        headers = (("content-type", "application/json"),) if body else ()
        try:
            async with asyncio.timeout(POLL_LIMIT_S):
                response = await self._transport.request(method, path, body=body, headers=headers)
                if response.status != 200:
                    raise await self._refusal(response)
                return await response.read(_MAX_POLL_BYTES)
        except TimeoutError as error:
            raise TimedOut(f"no answer to {path} within {POLL_LIMIT_S:g} s", engine=self.endpoint.name) from error
        except EngineError as error:
            error.engine = self.endpoint.name
            raise

    async def _ask_json(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """The JSON object that a side path answers with. Raises EngineError."""
        data = await self._ask(method, path, b"" if body is None else msgspec.json.encode(body))
        try:
            return msgspec.json.decode(data, type=dict[str, Any])
        except NOT_JSON as error:
            raise Broken(f"its answer to {path} is not a JSON object", engine=self.endpoint.name) from error

    async def _ask_if_there(self, path: str) -> dict[str, Any]:
        """The same for a path that not every version has: ``{}`` where it is missing."""
        try:
            return await self._ask_json("GET", path)
        except Rejected:
            return {}


def has_text_prompt(call: Call) -> bool:
    """Whether a completion's prompt is one text, and not token ids or several prompts."""
    try:
        return call.body.get("prompt", str) is not None
    except BodyError:
        return False


async def _read_refusal(response: Response) -> bytes:
    """The body, as far as it comes soon; ``b""`` otherwise: then the status alone has to do."""
    try:
        async with asyncio.timeout(POLL_LIMIT_S):
            return await response.read(_MAX_REFUSAL_BYTES)
    except (EngineError, TimeoutError):
        return b""
    finally:
        response.close()


def _client_stream_options(call: Call) -> dict[str, Any]:
    try:
        return call.body.get("stream_options", dict[str, Any]) or {}
    except BodyError as error:
        raise Rejected(error.message, param=error.param) from None


def _choices(call: Call) -> int:
    """How many answers the request asks for: ``n`` for each prompt."""
    try:
        n = call.body.get("n", int) or 1
    except BodyError:
        return 1  # the engine will say what it thinks of it
    prompts = 1
    if call.operation is Operation.COMPLETION:
        prompt = call.body.get("prompt")
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            prompts = len(prompt)
    return max(n, 1) * prompts
