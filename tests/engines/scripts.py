"""What a scripted engine can be told to do with a request: right answers at any pace, and every kind of wrong one.

A script is an async function of an ``Exchange``; these functions make them. Whatever waits for ever ends when the
client leaves or the engine is stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engines import shapes
from engines.ollama_shapes import OllamaAnswer
from engines.signals import Gate

if TYPE_CHECKING:
    from engines.scripted import Exchange

Script = Callable[["Exchange"], Awaitable[None]]

SSE = {"content-type": "text/event-stream"}


def chat(
    tokens: Sequence[str | Mapping[str, Any]] = ("Hel", "lo", "!"),
    *,
    finish: str = "stop",
    prompt_tokens: int = 5,
    cached_tokens: int | None = None,
    gate: Gate | None = None,
    end: Gate | None = None,
    progress: Sequence[tuple[int, int]] = (),
    done: bool = True,
    headers: Mapping[str, str] | None = None,
) -> Script:
    """A right answer in the engine's own shape: a stream or one body, whatever the request asks for, for any operation.

    A token is a text or a whole ``delta``. With a ``gate``, each event waits for a credit (so does the one body), with
    ``end`` the end of the stream's body, behind the last event;
    ``progress`` are (done, all) prompt tokens reported before. Without ``done`` there is no ``[DONE]``.
    """

    async def script(exchange: Exchange) -> None:
        answer = _answer(exchange, tokens, finish)
        answer.prompt_tokens, answer.cached_tokens = prompt_tokens, cached_tokens
        if not answer.streamed:
            if gate is not None:
                await gate.pass_through()
            await exchange.json(answer.body(), headers=headers)
            return
        await exchange.head(headers={**SSE, **(headers or {})})
        for event in [*answer.progress(progress), *answer.events(done=done)]:
            if gate is not None:
                await gate.pass_through()
            await exchange.data(event)
        if end is not None:
            await end.pass_through()
        await exchange.end()

    return script


def whole(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Script:
    """One JSON answer."""

    async def script(exchange: Exchange) -> None:
        await exchange.json(value, status, headers)

    return script


def text(body: str | bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Script:
    """One answer that is not JSON."""

    async def script(exchange: Exchange) -> None:
        data = body.encode() if isinstance(body, str) else body
        await exchange.head(status, {"content-type": "text/plain", **(headers or {})}, len(data))
        await exchange.data(data)

    return script


def status(code: int, body: object = None, headers: Mapping[str, str] | None = None) -> Script:
    """Refuse with ``code``; ``body`` is the JSON, an error in the OpenAI form when left out."""
    error = {"message": f"refused with {code}", "type": "scripted", "code": code}
    return whole(body or {"error": error}, code, headers)


def hang() -> Script:
    """Take the request and never answer."""

    async def script(exchange: Exchange) -> None:
        await _forever()

    return script


def silence() -> Script:
    """Send the head of a good answer, then nothing: what llama.cpp does while it reads a long prompt."""

    async def script(exchange: Exchange) -> None:
        await exchange.head(headers=SSE)
        await _forever()

    return script


def stall(after: int = 1, tokens: Sequence[str] = ("Hel", "lo", "!")) -> Script:
    """Stream ``after`` tokens, then nothing more."""

    async def script(exchange: Exchange) -> None:
        await _begin(exchange, after, tokens)
        await _forever()

    return script


def cut(
    after: int = 1,
    tokens: Sequence[str] = ("Hel", "lo", "!"),
    *,
    clean: bool = False,
    tail: bytes = b"",
    gate: Gate | None = None,
) -> Script:
    """Stream ``after`` tokens and die: the connection drops, or (``clean``) the body ends properly, unfinished.

    ``tail`` is sent last: the beginning of an event, for instance. With ``after=0`` only the head was sent. With a
    ``gate`` it waits for a credit before it dies.
    """

    async def script(exchange: Exchange) -> None:
        await _begin(exchange, after, tokens)
        if gate is not None:
            await gate.pass_through()
        if tail:
            await exchange.data(tail)
        if clean:
            await exchange.end()
        else:
            exchange.cut()

    return script


def drop(head: bytes = b"") -> Script:
    """Close the connection without an answer, or in the middle of its ``head``.

    Without a byte of head, on a connection that was used before, a client rightly tries once more.
    """

    async def script(exchange: Exchange) -> None:
        if head:
            await exchange.raw(head)
        exchange.cut()

    return script


def fail(
    after: int = 0,
    error: object = None,
    tokens: Sequence[str] = ("Hel", "lo", "!"),
    *,
    gate: Gate | None = None,
) -> Script:
    """Stream ``after`` tokens, then (through the ``gate``) an error event inside the 200, and end."""

    async def script(exchange: Exchange) -> None:
        await _begin(exchange, after, tokens)
        if gate is not None:
            await gate.pass_through()
        value = error or {"message": "out of memory", "type": "server_error", "code": 500}
        await exchange.data(_answer(exchange, tokens, "stop").failure(value))
        await exchange.end()

    return script


def pieces(*blobs: bytes, gate: Gate | None = None, headers: Mapping[str, str] | None = None) -> Script:
    """Stream exactly these bytes, one write each: odd framing, split code points."""

    async def script(exchange: Exchange) -> None:
        await exchange.head(headers={**SSE, **(headers or {})})
        for blob in blobs:
            if gate is not None:
                await gate.pass_through()
            await exchange.data(blob)
        await exchange.end()

    return script


def _answer(exchange: Exchange, tokens: Sequence[str | Mapping[str, Any]], finish: str) -> shapes.Answer:
    kind = exchange.engine.kind
    shape = OllamaAnswer if kind == "ollama" else shapes.Answer
    return shape(kind, exchange.engine.model, exchange.request, tokens, finish)


async def _begin(exchange: Exchange, after: int, tokens: Sequence[str]) -> None:
    await exchange.head(headers=SSE)
    answer = _answer(exchange, tokens, "stop")
    if after:
        for event in answer.tokens_only()[: after + 1]:  # the first event is the role
            await exchange.data(event)


async def _forever() -> None:
    await asyncio.Event().wait()
