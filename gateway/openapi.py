"""What the OpenAPI page says of the inference routes, which FastAPI does not see because they are plain ASGI."""

from __future__ import annotations

from typing import Any

from gateway.requests.outside import BAGGAGE_PREFIX, MOST_STAGES
from policies.types import Objective, Operation

PATHS = {
    Operation.CHAT: "/v1/chat/completions",
    Operation.COMPLETION: "/v1/completions",
    Operation.EMBEDDINGS: "/v1/embeddings",
}

_MODEL = {
    "type": "string",
    "description": "A name from `GET /v1/models`, or NAME@SELECTOR: a precision (`@bf16`), a least precision "
    "(`@int8+`), an engine (`@vllm`) or a deployment.",
    "examples": ["SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct@int8+"],
}
_STREAM = {"type": "boolean", "default": False, "description": "Send server-sent events as tokens come."}
_MAX_TOKENS = {"type": "integer", "minimum": 1, "description": "The most that may be written."}

_BODIES: dict[Operation, dict[str, Any]] = {
    Operation.CHAT: {
        "required": ["model", "messages"],
        "properties": {
            "model": _MODEL,
            "messages": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "required": ["role"],
                    "properties": {"role": {"type": "string"}, "content": {}},
                },
                "examples": [[{"role": "user", "content": "Say hello."}]],
            },
            "stream": _STREAM,
            "max_tokens": _MAX_TOKENS,
        },
    },
    Operation.COMPLETION: {
        "required": ["model", "prompt"],
        "properties": {"model": _MODEL, "prompt": {}, "stream": _STREAM, "max_tokens": _MAX_TOKENS},
    },
    Operation.EMBEDDINGS: {"required": ["model", "input"], "properties": {"model": _MODEL, "input": {}}},
}

_SUMMARIES = {
    Operation.CHAT: "Answer a conversation",
    Operation.COMPLETION: "Continue a text",
    Operation.EMBEDDINGS: "Embed texts",
}

_PARAMETERS = [
    {
        "name": "x-paceline-objective",
        "in": "header",
        "schema": {"type": "string", "enum": list(Objective)},
        "description": "What fastest means for this request.",
    },
    {
        "name": "x-paceline-deployment",
        "in": "header",
        "schema": {"type": "string"},
        "description": "Use this deployment and no other.",
    },
    {
        "name": "x-paceline-deadline-ms",
        "in": "header",
        "schema": {"type": "integer", "minimum": 1},
        "description": "Milliseconds within which the whole answer is wanted. When no deployment is predicted to "
        "manage that, the answer is a 503 at once, with the best estimate and `Retry-After`.",
    },
    {
        "name": "x-paceline-stage",
        "in": "header",
        "schema": {"type": "string"},
        "example": "retrieval=0.8, rerank=0.1",
        "description": f"What was done before this request, NAME=SECONDS, {MOST_STAGES} stages at most: `paceline why` "
        "shows them as time outside of the model.",
    },
    {
        "name": "baggage",
        "in": "header",
        "schema": {"type": "string"},
        "example": f"{BAGGAGE_PREFIX}retrieval=0.8",
        "description": f"W3C baggage, passed on to the engine; `{BAGGAGE_PREFIX}NAME=SECONDS` in it is a stage as in "
        "`x-paceline-stage`, which comes first where both name one.",
    },
    {
        "name": "traceparent",
        "in": "header",
        "schema": {"type": "string"},
        "description": "W3C trace context: the request is a part of this trace.",
    },
]

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}

_ERRORS = {
    "400": "The request is wrong, or no deployment can serve it: the message says why for each.",
    "401": "A key is needed.",
    "404": "No such model; the message has near names.",
    "413": "The body is too large.",
    "429": "Too much at once; `Retry-After` says when to come back.",
    "502": "The engine failed.",
    "503": "Nothing can take the request now; `Retry-After` says when to come back.",
    "504": "The engine was silent for too long.",
}


def inference_paths() -> dict[str, Any]:
    """Return the ``paths`` object for the inference routes."""
    return {path: {"post": _operation(operation)} for operation, path in PATHS.items()}


def _operation(operation: Operation) -> dict[str, Any]:
    answers: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if operation is not Operation.EMBEDDINGS:
        answers["text/event-stream"] = {"schema": {"type": "string"}}
    body = {"type": "object", "additionalProperties": True, **_BODIES[operation]}
    return {
        "tags": ["inference"],
        "summary": _SUMMARIES[operation],
        "description": "OpenAI's form; fields that are not listed reach the engine as they are.",
        "operationId": operation.value,
        "parameters": _PARAMETERS,
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {
            "200": {"description": "The answer; `x-paceline-*` headers say who gave it and why.", "content": answers},
            **{
                status: {"description": text, "content": {"application/json": {"schema": _ERROR}}}
                for status, text in _ERRORS.items()
            },
        },
    }
