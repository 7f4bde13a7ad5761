"""Ollama's answers, as the scripted engine gives them: shapes taken from 0.24 and 0.32 (see ``tests/wire/ollama``)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from engines.shapes import Answer, Request


def describe(model: str) -> dict[str, object]:
    """The side paths of an Ollama with one model."""
    details = {"format": "gguf", "family": "llama", "quantization_level": "Q4_1"}
    entry = {"name": f"{model}:latest", "model": f"{model}:latest", "digest": "d1", "details": details}
    return {
        "GET /api/version": {"version": "0.32.0"},
        "GET /api/tags": {"models": [entry]},
        "GET /api/ps": {"models": [{**entry, "size_vram": 0, "context_length": 4096}]},
        "POST /api/show": {
            "details": details,
            "model_info": {"llama.context_length": 8192},
            "capabilities": ["completion", "tools"],
        },
    }


class OllamaAnswer(Answer):
    """One answer: lines of JSON, the last with the counts."""

    def __init__(
        self, kind: str, model: str, request: Request, tokens: Sequence[str | Mapping[str, Any]], finish: str
    ) -> None:
        super().__init__(kind, model, request, tokens, finish)
        self._model = model
        self._is_chat = request.path == "/api/chat"
        self.streamed = request.path != "/api/embed" and request.json.get("stream", True)

    def body(self) -> dict[str, Any]:
        """The answer to /api/embed: the adapter asks for all else as a stream."""
        vectors = [[0.5, -0.25]] * self._inputs
        return {"model": self._model, "embeddings": vectors, "prompt_eval_count": self.prompt_tokens}

    def events(self, *, done: bool = True) -> list[bytes]:
        last = {"done_reason": "length" if self._finish == "length" else "stop", "load_duration": 1_000_000}
        last |= {"prompt_eval_count": self.prompt_tokens, "prompt_eval_duration": 50_000_000}
        last |= {"eval_count": len(self._tokens), "eval_duration": 30_000_000}
        return [*self.tokens_only(), self._line("", done=True, **last)]

    def tokens_only(self) -> list[bytes]:
        return [self._line(""), *(self._line(token) for token in self._tokens)]

    def progress(self, steps: Sequence[tuple[int, int]]) -> list[bytes]:
        """It reports none."""
        return []

    def failure(self, error: object) -> bytes:
        text = error.get("message") if isinstance(error, Mapping) else error
        return json.dumps({"error": text}).encode() + b"\n"

    def _line(self, token: str | Mapping[str, Any], *, done: bool = False, **more: Any) -> bytes:
        said = {"content": token} if isinstance(token, str) else dict(token)
        fields = {"message": {"role": "assistant", **said}} if self._is_chat else {"response": said.get("content", "")}
        return json.dumps({"model": self._model, **fields, "done": done, **more}).encode() + b"\n"
