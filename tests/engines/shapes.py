"""The answers of each kind of engine, as the scripted one gives them: shapes taken from real ones where there were any.

``llamacpp`` build b11549, ``vllm`` 0.32, ``mlx`` 0.32 and ``builtin`` are real; ``lmstudio`` and ``openai`` follow
documentation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Request(Protocol):
    """What of a request shapes its answer."""

    @property
    def path(self) -> str: ...
    @property
    def json(self) -> Any: ...


_VLLM_METRICS = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="engine-model"} 2.0
vllm:num_requests_waiting{engine="0",model_name="engine-model"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="engine-model",reason="capacity"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="engine-model"} 0.25
"""

_BUILTIN_METRICS = b"""# TYPE paceline_engine_requests_running gauge
paceline_engine_requests_running 2
paceline_engine_requests_waiting 1
paceline_engine_cache_usage_ratio 0.25
"""


def describe(kind: str, model: str) -> dict[str, object]:
    """The side paths of an engine: ``"METHOD /path"`` → JSON, or the bytes of another text."""
    models = {"object": "list", "data": [{"id": model, "object": "model", "created": 1, "owned_by": kind}]}
    if kind == "llamacpp":
        return {
            "GET /health": {"status": "ok"},
            "GET /v1/models": {
                "object": "list",
                "data": [{**models["data"][0], "meta": {"n_ctx_train": 8192, "size": 1}}],
            },
            "GET /props": {
                "default_generation_settings": {"n_ctx": 2048, "params": {}},
                "total_slots": 2,
                "model_alias": model,
                "model_ftype": "Q4_K - Medium",
                "model_path": f"/models/{model}.gguf",
                "modalities": {"vision": False, "audio": False},
                "endpoint_slots": True,
                "chat_template": "{{ messages }}",
                "chat_template_caps": {"supports_tools": True, "supports_tool_calls": True},
                "build_info": "b11549-c0ffee00",
            },
            "GET /slots": [
                {"id": 0, "n_ctx": 2048, "is_processing": True},
                {"id": 1, "n_ctx": 2048, "is_processing": False},
            ],
        }
    if kind == "vllm":
        card = {
            **models["data"][0],
            "root": f"/models/{model}",
            "max_model_len": 2048,
            "parent": None,
            "permission": [],
        }
        return {
            "GET /health": {},
            "GET /version": {"version": "0.32.0"},
            "GET /metrics": _VLLM_METRICS,
            "GET /v1/models": {"object": "list", "data": [card]},
        }
    if kind == "builtin":
        told = {"precision": "int8", "scheme": "int8-channel", "context": 2048, "slots": 4, "cache_block": 16}
        card = {**models["data"][0], "owned_by": "paceline", **told, "version": "0.1.0", "digest": "c0ffee"}
        return {
            "GET /health": {"status": "ok"},
            "GET /ready": {"status": "ready"},
            "GET /metrics": _BUILTIN_METRICS,
            "GET /v1/models": {"object": "list", "data": [card]},
        }
    if kind == "lmstudio":
        card = {"id": model, "object": "model", "type": "llm", "arch": "llama", "quantization": "Q4_K_M"}
        card |= {"state": "loaded", "max_context_length": 8192, "loaded_context_length": 4096}
        return {"GET /v1/models": models, "GET /api/v0/models": {"object": "list", "data": [card]}}
    if kind == "mlx":
        return {"GET /health": {"status": "ok"}, "GET /v1/models": b""}  # really an empty body
    return {"GET /v1/models": models}


def refuse_trial(kind: str, request: Request, capabilities: set[str]) -> tuple[int, dict[str, object]] | None:
    """What the engine says to a request that only tries what it can; ``None`` for any other request."""
    if kind not in ("vllm", "llamacpp") or not request.path.startswith("/v1/"):
        return None
    asked = request.json
    if request.path == "/v1/embeddings" and asked.get("input") == []:
        if "embeddings" in capabilities:
            return 400, _error(400, "Input array cannot be empty")
        if kind == "vllm":
            return 404, {"detail": "Not Found"}
        return 501, _error(501, "This server does not support embeddings. Start it with `--embeddings`")
    if kind != "vllm" or asked.get("max_tokens") != 1_000_000_000:
        return None
    if "image_url" in json.dumps(asked) and "vision" not in capabilities:
        return 400, _error(400, "smollm2 is not a multimodal model")
    if asked.get("tool_choice") == "required" and "tool_choice" not in capabilities:
        return 400, _error(400, 'tool_choice="required" requires --tool-call-parser to be set')
    if asked.get("tools") and "tool_choice" not in asked and "tools" not in capabilities:
        return 400, _error(
            400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        )
    return 400, _error(400, "max_tokens=1000000000 cannot be greater than max_model_len=2048. Please request fewer.")


def _error(code: int, message: str) -> dict[str, object]:
    return {"error": {"message": message, "type": "BadRequestError", "param": None, "code": code}}


class Answer:
    """One answer of a scripted engine: as stream events or as one body."""

    def __init__(
        self, kind: str, model: str, request: Request, tokens: Sequence[str | Mapping[str, Any]], finish: str
    ) -> None:
        asked = request.json
        self.kind = kind
        self.prompt_tokens = 5
        self.cached_tokens: int | None = None
        self._tokens = tokens
        self._finish = finish
        self._operation = request.path.rpartition("/v1/")[2]
        self._is_chat = self._operation == "chat/completions"
        self.streamed = bool(asked.get("stream")) and self._operation != "embeddings"
        self._usage_wanted = bool((asked.get("stream_options") or {}).get("include_usage"))
        self._head = {"id": "chatcmpl-1", "created": 1700000000, "model": model, "system_fingerprint": "fp_scripted"}
        inputs = asked.get("input", "")
        self._inputs = len(inputs) if isinstance(inputs, list) else 1

    def body(self) -> dict[str, Any]:
        """The whole answer, for a request that does not stream."""
        if self._operation == "embeddings":
            vectors = [{"object": "embedding", "index": i, "embedding": [0.5, -0.25]} for i in range(self._inputs)]
            usage = {"prompt_tokens": self.prompt_tokens, "total_tokens": self.prompt_tokens}
            return {"object": "list", "model": self._head["model"], "data": vectors, "usage": usage}
        texts = "".join(token for token in self._tokens if isinstance(token, str))
        choice: dict[str, Any] = {"index": 0, "finish_reason": self._finish}
        if not self._is_chat:
            return self._merged("text_completion", {**choice, "text": texts})
        return self._merged("chat.completion", {**choice, "message": {"role": "assistant", "content": texts}})

    def events(self, *, done: bool = True) -> list[bytes]:
        """All events of the stream."""
        events = self.tokens_only()
        events.append(self._event(self._choice({}, self._finish)))
        if self._usage_wanted:
            extra: dict[str, Any] = {"choices": [], "usage": self._usage()}
            if self.kind in ("builtin", "llamacpp"):
                extra["timings"] = self._timings()
            events.append(self._event(extra))
        return [*events, b"data: [DONE]\n\n"] if done else events

    def tokens_only(self) -> list[bytes]:
        """The role (for chat) and one event a token."""
        deltas = [token if isinstance(token, Mapping) else {"content": token} for token in self._tokens]
        first = [self._choice({"role": "assistant", "content": ""}, None)] if self._is_chat else []
        return [self._event(choice) for choice in [*first, *(self._choice(delta, None) for delta in deltas)]]

    def progress(self, steps: Sequence[tuple[int, int]]) -> list[bytes]:
        """How far the prompt is read, in the engine's own manner."""
        if self.kind == "llamacpp":
            return [
                self._event(
                    self._choice({"role": "assistant", "content": None}, None)
                    | {"prompt_progress": {"total": all_, "cache": 0, "processed": done, "time_ms": 10}}
                )
                for done, all_ in steps
            ]
        return [f": keepalive {done}/{all_}\n\n".encode() for done, all_ in steps]

    def failure(self, error: object) -> bytes:
        """An error event inside of a 200."""
        return b"data: " + json.dumps({"error": error}).encode() + b"\n\n"

    def _choice(self, delta: Mapping[str, Any], finish: str | None) -> dict[str, Any]:
        if self._is_chat:
            return {"choices": [{"index": 0, "delta": dict(delta), "logprobs": None, "finish_reason": finish}]}
        text = delta.get("content") or ""
        return {"choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}]}

    def _event(self, fields: Mapping[str, Any]) -> bytes:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        spaced = self.kind == "mlx"  # Python's json with its default separators
        value = {**self._head, "object": kind, **fields}
        return b"data: " + json.dumps(value, separators=None if spaced else (",", ":")).encode() + b"\n\n"

    def _merged(self, kind: str, choice: dict[str, Any]) -> dict[str, Any]:
        body = {**self._head, "object": kind, "choices": [choice], "usage": self._usage()}
        return body | {"timings": self._timings()} if self.kind in ("builtin", "llamacpp") else body

    def _usage(self) -> dict[str, Any]:
        n = len(self._tokens)
        usage: dict[str, Any] = {"prompt_tokens": self.prompt_tokens, "completion_tokens": n}
        usage["total_tokens"] = self.prompt_tokens + n
        if self.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        return usage

    def _timings(self) -> dict[str, Any]:
        cached = self.cached_tokens or 0
        if self.kind == "builtin":
            return {"queue_ms": 10.0, "prefill_ms": 50.0, "decode_ms": 30.0, "batch": 1.0}
        timings = {"cache_n": cached, "prompt_n": self.prompt_tokens - cached, "prompt_ms": 50.0}
        return timings | {"predicted_n": len(self._tokens), "predicted_ms": 30.0}
