"""A request of a soak as it is sent, and what its answer says."""

from __future__ import annotations

from typing import Final

import msgspec

from adapters.base import Answer, Call
from adapters.body import PROMPT_FIELD
from adapters.heard import NOT_JSON
from measure.calls import call_to, prompt_fields
from measure.output import LOOP_LENGTH, streamed_text, text_faults
from measure.prompts import prompt
from measure.soak_plan import NO_PROMPT, WRONG_TYPE
from measure.soak_trial import Asked, Role
from policies.types import Deployment, Operation

REPEATED_SEED: Final = 1
_FAILURES: Final = ("empty", "broken Unicode")
"""Faults of a text that are an engine's; a loop of words may well be the model's own."""


def operation_of(deployment: Deployment) -> Operation:
    """Return what is asked of a deployment: chat where it can. Raises ``ValueError`` for nothing."""
    for operation in Operation:
        if operation.capability in deployment.capabilities:
            return operation
    raise ValueError(f"{deployment.id} neither generates nor embeds: there is nothing to ask")


def call_of(asked: Asked, deployment: Deployment, operation: Operation, seed: int) -> Call:
    """Return the request; prompts of different seeds differ from their first token on."""
    generates = operation is not Operation.EMBEDDINGS
    stream = asked.stream and generates
    text = prompt(asked.prompt_tokens, REPEATED_SEED if asked.role is Role.REPEATED else seed)
    fields = prompt_fields(operation, text)
    if generates:
        fields |= {"max_tokens": asked.output_tokens, "temperature": 0, "stream": stream}
    if asked.fault == WRONG_TYPE:
        # Of the prompt itself: some engines pass over a limit of the wrong type, and write until the context is full.
        fields[PROMPT_FIELD[operation]] = {"not": "this"}
    elif asked.fault == NO_PROMPT:
        del fields[PROMPT_FIELD[operation]]
    return call_to(deployment, operation, fields, prompt_tokens=asked.prompt_tokens)


def text_of(answer: Answer, data: bytes) -> str:
    """Return what an answer says; of embeddings, its vectors."""
    if answer.streamed:
        return streamed_text(data)
    try:
        body = msgspec.json.decode(data, type=_Whole)
    except NOT_JSON:
        return ""
    if body.data is not msgspec.UNSET:
        return bytes(body.data).decode()
    return "".join(choice.message.said if choice.message else choice.text for choice in body.choices[:1])


def text_failure(text: str) -> str:
    """Return what is wrong with a text, if that is the engine's fault; else ""."""
    bare = text.strip()
    if len(bare) >= LOOP_LENGTH and len(set(bare)) == 1:
        return "one character only"
    return next((fault for fault in text_faults(text) if fault in _FAILURES), "")


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    @property
    def said(self) -> str:
        return (self.reasoning_content or self.reasoning or "") + (self.content or "")


class _Choice(msgspec.Struct):
    message: _Message | None = None
    text: str = ""


class _Whole(msgspec.Struct):
    choices: list[_Choice] = []
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
