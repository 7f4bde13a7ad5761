"""Ollama's answer to /api/chat and /api/generate: NDJSON in, OpenAI's server-sent events out."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from adapters.answers import EngineAnswer
from adapters.base import Call, Endpoint, Outcome
from adapters.errors import Broken, EngineError, Interrupted
from adapters.heard import NOT_JSON, count_in
from adapters.ollama.events import DONE, events_for
from adapters.ollama.line import EMPTY, Line, decode_line
from adapters.ollama.turn import Turn
from adapters.openai_errors import error_from_event
from adapters.response import Response

_LINE_LIMIT: Final = 16 * 1024 * 1024

_LOOPING: Final = 30
"""Ollama ends an answer without its last line when one token came more than 30 times in a row."""


class OllamaStream(EngineAnswer):
    """A stream of one answer, in events."""

    streamed = True

    def __init__(self, response: Response, call: Call, turn: Turn, endpoint: Endpoint) -> None:
        super().__init__(response, endpoint.name, Outcome())
        self._secret = endpoint.api_key
        self._silence_s = endpoint.silence_timeout_s
        self._turn = turn
        self._events = events_for(call)
        self.outcome.response_id = self._events.id
        self._wants_usage = call.include_usage or not call.stream
        self._now = asyncio.get_running_loop().time
        self._rest = b""
        self._last = b""
        self._repeats = 0
        self._delivered = False
        self._error: EngineError | None = None

    async def _read(self) -> bytes | None:
        if self._error is not None:
            raise self._error
        try:
            data = await self._response.read_some()
        except Interrupted as error:
            if self._delivered:
                raise
            raise Broken(error.message) from error  # the client has nothing of it: another engine may be asked
        self._response.read_timeout_s = self._silence_s
        events = self._lines(data) if data else self._end()
        self._delivered = self._delivered or bool(events)
        if self.outcome.whole:
            self._finish()
        return events

    def close(self) -> None:
        super().close()
        self._turn.over()

    def _lines(self, data: bytes) -> bytes:
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > _LINE_LIMIT:
            raise Broken(f"{self.engine} sent a line of more than {_LINE_LIMIT} bytes")
        out: list[bytes] = []
        try:
            out.extend(self._line(line) for line in lines if line and not self.outcome.whole)
        except EngineError as error:
            if not (self._delivered and out):
                raise  # while the client has nothing, another engine may still answer from the start
            self._error = error
        return out[0] if len(out) == 1 else b"".join(out)

    def _end(self) -> bytes:
        """The body is over, and no line has said that the answer is."""
        rest, self._rest = self._rest, b""
        out = self._line(rest) if rest.strip() else b""
        if self.outcome.whole:
            return out
        if self._repeats >= _LOOPING:
            return out + self._last_events(Line(done=True, done_reason="length"))
        kind = Interrupted if self._delivered or out else Broken
        raise kind(f"{self.engine} ended its answer without its last line")

    def _line(self, data: bytes) -> bytes:
        try:
            line = decode_line(data)
        except NOT_JSON as error:
            kind = Interrupted if self._delivered else Broken
            raise kind(f"{self.engine} sent a line that is not Ollama's JSON: {error}") from None
        if line.error:
            raise self._failed(msgspec.json.decode(line.error))
        message = line.message
        if message is None:
            content, thinking, calls = bytes(line.response), EMPTY, None
        else:
            content, thinking, calls = bytes(message.content), bytes(message.thinking), message.tool_calls
        out = b""
        if content != EMPTY or thinking != EMPTY or line.logprobs:
            out = self._events.text(content, thinking, line.logprobs)
            self._repeats = self._repeats + 1 if content == self._last else 0
            self._last = content
        if calls:
            out += self._events.tool_calls(calls)
        if out:
            outcome = self.outcome
            outcome.output_chunks += 1
            outcome.last_token_at = now = self._now()
            if outcome.first_token_at is None:
                outcome.first_token_at = now
        return out + self._last_events(line) if line.done else out

    def _failed(self, error: object) -> EngineError:
        meant = error_from_event(error, secret=self._secret)
        return Interrupted(f"it failed in the middle of its answer: {meant.message}") if self._delivered else meant

    def _last_events(self, line: Line) -> bytes:
        outcome = self.outcome
        prompt, output = count_in(line.prompt_eval_count), count_in(line.eval_count)
        outcome.prompt_tokens, outcome.output_tokens = prompt, output
        outcome.decode_s = line.decode_s
        outcome.load_s = self._turn.answered(line.load_s)
        if outcome.load_s:
            outcome.prefill_s = line.prefill_s  # just loaded, so its cache was empty; else nobody knows what it held
        total = (prompt or 0) + (output or 0)
        # An answer that outgrew the context was written without the prompt's beginning: that is not a good end.
        out, outcome.finish_reason = self._events.finish("length" if total > self._turn.num_ctx else line.done_reason)
        outcome.whole = True
        if self._wants_usage and prompt is not None:
            out += self._events.usage(prompt, output or 0)
        return out + DONE
