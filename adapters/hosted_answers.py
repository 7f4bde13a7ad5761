"""What litellm gives back, in OpenAI's form: streams as server-sent events, the rest as one body."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec

from adapters.base import Answer, Call, Outcome
from adapters.errors import Broken, EngineError, Interrupted, TimedOut
from adapters.usage import id_of, read_usage

DONE: Final = b"data: [DONE]\n\n"
_OUTPUT: Final = ("content", "reasoning_content", "tool_calls", "text", "refusal", "audio")


class HostedStream(Answer):
    """``chunks`` is litellm's stream, ``translate`` makes an EngineError of what it raises (it raises ``foreign``).

    ``on_close`` takes the stream when it is over: closing it needs to be awaited.
    """

    streamed = True

    def __init__(
        self,
        chunks: AsyncIterator[Any],
        call: Call,
        *,
        silence_s: float,
        foreign: tuple[type[Exception], ...],
        translate: Callable[[Exception], EngineError],
        on_close: Callable[[Any], None],
    ) -> None:
        self.outcome = Outcome()
        self._chunks = chunks
        self._call = call
        self._silence_s = silence_s
        self._foreign = foreign
        self._translate = translate
        self._on_close: Callable[[Any], None] | None = on_close
        self._now = asyncio.get_running_loop().time
        self._delivered = False

    async def read(self) -> bytes | None:
        if self.outcome.whole or self._on_close is None:
            self.close()
            return None
        try:
            events = await self._next()
        except EngineError:
            self.close()
            raise
        self._delivered = self._delivered or bool(events)
        return events

    def close(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close(self._chunks)

    async def _next(self) -> bytes:
        try:
            async with asyncio.timeout(self._silence_s):
                chunk = await anext(self._chunks)
        except StopAsyncIteration:
            return self._end()
        except TimeoutError:
            kind = Interrupted if self._delivered else TimedOut
            raise kind(f"the provider was silent for {self._silence_s:g} s") from None
        except self._foreign as error:
            mapped = self._translate(error)
            raise Interrupted(mapped.message, engine=mapped.engine) if self._delivered else mapped from error
        return self._event(as_fields(chunk))

    def _event(self, fields: dict[str, Any]) -> bytes:
        outcome, usage = self.outcome, fields.pop("usage", None)
        read_usage(usage, outcome)
        outcome.response_id = outcome.response_id or id_of(fields.get("id"))
        for choice in fields.get("choices") or ():
            said = choice.get("delta") or choice
            if any(said.get(name) for name in _OUTPUT):
                outcome.output_chunks += 1
                outcome.last_token_at = now = self._now()
                outcome.first_token_at = outcome.first_token_at or now
            outcome.finish_reason = choice.setdefault("finish_reason", None) or outcome.finish_reason
        if usage and self._call.include_usage:
            fields["usage"] = usage
        elif not fields.get("choices"):
            return b""
        return b"data: " + msgspec.json.encode({**fields, "model": self._call.model}) + b"\n\n"

    def _end(self) -> bytes:
        if self.outcome.finish_reason is None:
            raise (Interrupted if self._delivered else Broken)("the provider ended its answer before it was complete")
        self.outcome.whole = True
        return DONE


class HostedBody(Answer):
    """An answer that came as one."""

    streamed = False

    def __init__(self, result: Any, call: Call) -> None:
        self.outcome = Outcome(whole=True)
        fields = as_fields(result)
        read_usage(fields.get("usage"), self.outcome)
        self.outcome.response_id = id_of(fields.get("id"))
        for choice in fields.get("choices") or ():
            self.outcome.finish_reason = choice.get("finish_reason")
        self._body: bytes | None = msgspec.json.encode({**fields, "model": call.model})

    async def read(self) -> bytes | None:
        body, self._body = self._body, None
        return body

    def close(self) -> None:
        self._body = None


def as_fields(value: Any) -> dict[str, Any]:
    """The fields of one of litellm's objects, those left out that the provider did not send."""
    fields: dict[str, Any] = value.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    return fields
