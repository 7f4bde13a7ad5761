"""Requests of our own to an engine, as the measurements send them."""

from __future__ import annotations

import msgspec

from adapters.base import Call
from adapters.body import PROMPT_FIELD, Body
from policies.types import Deployment, Operation


def prompt_fields(operation: Operation, text: str) -> dict[str, object]:
    """Return the field that holds the prompt: a chat is one message of a user."""
    is_chat = operation is Operation.CHAT
    return {PROMPT_FIELD[operation]: [{"role": "user", "content": text}] if is_chat else text}


def call_to(deployment: Deployment, operation: Operation, fields: dict[str, object], *, prompt_tokens: int) -> Call:
    """Return the call with these fields of the body beside the model; it asks for its usage where it generates.

    ``stream`` and ``max_tokens`` are taken from the fields, ``prompt_tokens`` is about the prompt's length.
    """
    limit = fields.get("max_tokens")
    return Call(
        operation=operation,
        body=Body.parse(msgspec.json.encode({"model": deployment.engine_model, **fields})),
        model=deployment.engine_model,
        engine_model=deployment.engine_model,
        stream=bool(fields.get("stream")),
        include_usage=operation is not Operation.EMBEDDINGS,
        prompt_tokens=prompt_tokens,
        max_output=limit if isinstance(limit, int) else None,
        context=deployment.context,
    )
