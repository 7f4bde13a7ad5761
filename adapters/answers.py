"""What an OpenAI-speaking engine's response becomes: a stream, a stream joined into one body, or the one body it is."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Final

import msgspec

from adapters.base import Answer, Outcome
from adapters.errors import Broken, EngineError, Interrupted
from adapters.heard import NOT_JSON
from adapters.join import Join, Misshapen
from adapters.openai_errors import error_from_event
from adapters.relay import Relay
from adapters.response import Response
from adapters.usage import id_of, read_timings, read_usage
from policies.types import Operation

MAX_BODY_BYTES: Final = 64 * 1024 * 1024

_MODEL: Final = b'"model"'

_decode_raw: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class EngineAnswer(Answer):
    """Holds the response, names the engine in each error, and closes when one is raised."""

    def __init__(self, response: Response, engine: str, outcome: Outcome) -> None:
        self.outcome = outcome
        outcome.connected_at = response.connected_at
        self._response = response
        self.engine = engine
        self._ended = False

    def close(self) -> None:
        self._ended = True
        self._response.close()

    def _finish(self) -> None:
        """The answer is whole: nothing behind it is waited for, so that whoever leaves now has left a whole answer."""
        self._ended = True
        self._response.finish()

    async def read(self) -> bytes | None:
        if self._ended:
            return None
        try:
            return await self._read()
        except EngineError as error:
            error.engine = self.engine
            self.close()
            raise

    @abstractmethod
    async def _read(self) -> bytes | None: ...


class StreamAnswer(EngineAnswer):
    """Events as they arrive, made ready for the client by a Relay."""

    streamed = True

    def __init__(self, response: Response, engine: str, outcome: Outcome, relay: Relay, silence_s: float) -> None:
        super().__init__(response, engine, outcome)
        self._relay = relay
        self._silence_s = silence_s
        self._begun = False

    async def _read(self) -> bytes | None:
        relay = self._relay
        if relay.failure is not None:
            raise relay.failure
        try:
            data = await self._response.read_some()
        except Interrupted as error:
            if relay.emitted:
                raise
            raise Broken(error.message) from error  # nobody was given a byte of it yet
        if not self._begun:
            self._begun = True
            self._response.read_timeout_s = self._silence_s
        if data:
            events = relay.feed(data)
            if relay.done:
                self._finish()
            return events
        self._ended = True
        return relay.end()


class JoinedAnswer(Answer):
    """A stream that becomes one body, for a client that does not stream."""

    streamed = False

    def __init__(self, stream: EngineAnswer, operation: Operation) -> None:
        self.outcome = stream.outcome
        self._stream = stream
        self._join = Join(operation)
        self._size = 0

    def close(self) -> None:
        self._stream.close()

    async def read(self) -> bytes | None:
        try:
            blob = await self._stream.read()
        except Interrupted as error:  # the client was given nothing of it: another engine may be asked
            raise Broken(error.message, engine=error.engine) from error
        if blob is None:
            return None
        if self.kept is not None and blob:
            self.kept.append(blob)
        self._size += len(blob)
        try:
            self._join.add(blob)
            if self._size > MAX_BODY_BYTES:
                raise self._refuse(f"it answered with more than {MAX_BODY_BYTES} bytes")
            return msgspec.json.encode(self._join.body()) if self.outcome.whole else b""
        except Misshapen as error:
            raise self._refuse(f"it sent {error}") from error

    def _refuse(self, message: str) -> Broken:
        self.close()
        return Broken(message, engine=self._stream.engine)


class WholeAnswer(EngineAnswer):
    """One JSON body, read to its end, the model's name replaced; all its other fields byte for byte."""

    streamed = False

    def __init__(self, response: Response, engine: str, outcome: Outcome, model: str, secret: str = "") -> None:
        super().__init__(response, engine, outcome)
        self._model = model
        self._secret = secret

    async def _read(self) -> bytes | None:
        try:
            body = await self._response.read(MAX_BODY_BYTES)
        except Interrupted as error:
            raise Broken(error.message) from error
        self._ended = True
        try:
            said = _decode_whole(body)
        except NOT_JSON as error:
            raise Broken("it answered with something that is not a JSON object of OpenAI's protocol") from error
        if said.error:
            raise error_from_event(said.error, secret=self._secret)
        read_usage(said.usage, self.outcome)
        read_timings(said.timings, self.outcome)
        self.outcome.finish_reason = next((c.finish_reason for c in said.choices or () if c.finish_reason), None)
        self.outcome.response_id = id_of(said.id)
        self.outcome.whole = True
        return _rename(body, bytes(said.model), self._model) if said.model else body


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Whole(msgspec.Struct):
    """What is looked at of one body."""

    id: Any = None
    model: msgspec.Raw = msgspec.Raw()
    error: Any = None
    usage: Any = None
    timings: Any = None
    choices: list[_Choice] | None = None


_decode_whole: Final = msgspec.json.Decoder(_Whole).decode


def _rename(body: bytes, found: bytes, model: str) -> bytes:
    """Put ``model`` in the place of the JSON value ``found`` that the body has for its model."""
    if body.count(_MODEL) == 1:
        start = body.index(found, body.index(_MODEL) + len(_MODEL))
        return body[:start] + msgspec.json.encode(model) + body[start + len(found) :]
    return msgspec.json.encode({**_decode_raw(body), "model": model})
