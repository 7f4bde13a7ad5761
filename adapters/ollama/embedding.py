"""Ollama's answer to /api/embed in OpenAI's form."""

from __future__ import annotations

import base64
import sys
from array import array
from typing import Final

import msgspec
from msgspec import Raw

from adapters.answers import EngineAnswer
from adapters.base import Call, Endpoint, Outcome
from adapters.errors import Broken, Interrupted
from adapters.heard import NOT_JSON, count_in, duration_in
from adapters.ollama.turn import Turn
from adapters.response import Response

_ANSWER_LIMIT: Final = 256 * 1024 * 1024


class _Embedded(msgspec.Struct):
    embeddings: list[Raw]
    prompt_eval_count: int = 0
    load_duration: int = 0


class OllamaEmbedding(EngineAnswer):
    """The vectors, as JSON numbers untouched, or as base64 of little-endian 32-bit floats when the client asks so."""

    streamed = False

    def __init__(self, response: Response, call: Call, turn: Turn, endpoint: Endpoint) -> None:
        super().__init__(response, endpoint.name, Outcome())
        self._turn = turn
        self._model = call.model
        self._as_base64 = call.body.get("encoding_format") == "base64"

    async def _read(self) -> bytes | None:
        if self.outcome.whole:
            self.close()
            return None
        try:
            return self._translate(await self._response.read(_ANSWER_LIMIT))
        except Interrupted as error:
            raise Broken(error.message) from error

    def close(self) -> None:
        super().close()
        self._turn.over()

    def _translate(self, data: bytes) -> bytes:
        try:
            embedded = msgspec.json.decode(data, type=_Embedded)
            vectors = [_as_base64(vector) for vector in embedded.embeddings] if self._as_base64 else embedded.embeddings
        except NOT_JSON as error:
            raise Broken(f"{self.engine} answered with something else than embeddings: {error}") from None
        tokens = count_in(embedded.prompt_eval_count) or 0
        answer = {
            "object": "list",
            "data": [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)],
            "model": self._model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
        outcome = self.outcome
        outcome.prompt_tokens, outcome.output_tokens, outcome.whole = tokens, 0, True
        outcome.load_s = self._turn.answered((duration_in(embedded.load_duration) or 0.0) * 1e-9)
        return msgspec.json.encode(answer)


def _as_base64(vector: Raw) -> str:
    floats = array("f", msgspec.json.decode(vector, type=list[float]))
    if sys.byteorder == "big":
        floats.byteswap()
    return base64.b64encode(floats.tobytes()).decode()
