"""The engine that a contract test looks at: a real one, or a scripted one that plays its kind."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engines.scripted import ScriptedEngine
from engines.signals import LIMIT_S

from adapters.base import Adapter, Answer, Call, EngineDescription, ModelDescription
from adapters.body import Body
from adapters.ollama import OllamaAdapter
from adapters.openai_protocol import OpenAIAdapter
from adapters.sse import event_data, split_events
from policies.types import Capability, Operation

ASKED_NAME = "the-name-asked-for"


@dataclass
class Subject:
    """An adapter and what stands behind it."""

    adapter: Adapter
    engine_model: str
    scripted: ScriptedEngine | None = None
    description: EngineDescription | None = None
    chat_defaults: dict[str, Any] = field(default_factory=dict)

    @property
    def real(self) -> bool:
        return self.scripted is None

    async def model(self) -> ModelDescription:
        """The model under test, as the engine describes it."""
        if self.description is None:
            self.description = await self.adapter.describe()
        return next(model for model in self.description.models if model.engine_model == self.engine_model)

    async def can(self, capability: Capability) -> bool:
        return capability in (await self.model()).capabilities

    def call(
        self,
        fields: dict[str, Any],
        operation: Operation = Operation.CHAT,
        *,
        stream: bool = False,
        include_usage: bool = False,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> Call:
        """A call as the gateway makes it out of a client's body."""
        body: dict[str, Any] = {"model": ASKED_NAME, **self.chat_defaults, **fields}
        if stream:
            body["stream"] = True
        if include_usage:
            body["stream_options"] = {"include_usage": True}
        limit = body.get("max_tokens")
        return Call(
            operation=operation,
            body=Body.parse(json.dumps(body).encode()),
            model=ASKED_NAME,
            engine_model=self.engine_model,
            stream=stream,
            include_usage=include_usage,
            prompt_tokens=len(json.dumps(fields)) // 3,
            max_output=limit if isinstance(limit, int) else None,
            context=self._context(),
            headers=headers,
        )

    def _context(self) -> int | None:
        models = self.description.models if self.description else ()
        return next((model.context for model in models if model.engine_model == self.engine_model), None)

    async def stream(self, fields: dict[str, Any], **options: Any) -> tuple[list[Any], Answer]:
        """The events' objects of a streamed answer, ``"[DONE]"`` as it is, and the answer."""
        answer = await self.adapter.send(self.call(fields, stream=True, **options))
        assert answer.streamed
        return events_of(await read_all(answer)), answer

    async def whole(self, fields: dict[str, Any], **options: Any) -> tuple[Any, Answer]:
        """The one body of an answer that is not streamed, and the answer."""
        answer = await self.adapter.send(self.call(fields, **options))
        assert not answer.streamed
        return json.loads(await read_all(answer)), answer


async def rested(adapter: Adapter) -> None:
    """Return once a connection waits for the next request: an answer is over before its body is."""
    assert isinstance(adapter, OpenAIAdapter | OllamaAdapter)
    transport = adapter._transport

    async def rests() -> bool:
        return transport.resting_connections > 0

    await eventually(rests, every_s=0.001, limit_s=LIMIT_S, what="a connection rests")


async def read_all(answer: Answer) -> bytes:
    try:
        parts = []
        while (part := await answer.read()) is not None:
            parts.append(part)
        return b"".join(parts)
    finally:
        answer.close()


def events_of(blob: bytes) -> list[Any]:
    """Parsed events; a comment or an event without data fails."""
    datas = [event_data(event) for event in split_events(blob)]
    assert None not in datas, "something other than data reached the client"
    return ["[DONE]" if data == b"[DONE]" else json.loads(data or b"") for data in datas]


def text_of(events: list[Any]) -> str:
    """The text of a stream's first choice."""
    pieces = []
    for event in events:
        for choice in event["choices"] if event != "[DONE]" else ():
            if choice["index"] == 0:
                pieces.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
    return "".join(pieces)


async def eventually(condition: Callable[[], Any], *, every_s: float, limit_s: float, what: str) -> float:
    """Poll ``condition`` (async) until it is true; return the seconds it took. Raises AssertionError at the limit."""
    begin = time.monotonic()
    while not await condition():
        assert time.monotonic() - begin < limit_s, f"{what}: not within {limit_s:g} s"
        await asyncio.sleep(every_s)
    return time.monotonic() - begin
