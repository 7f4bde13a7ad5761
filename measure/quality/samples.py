"""The user's own samples: JSON Lines, each a prompt with what a good answer to it is."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from adapters.heard import NOT_JSON
from measure.quality.checks import Check, Contains, Json, Matches, NoLoop
from measure.quality.prompts import Message, Prompt, user
from measure.quality.schemas import unusable_schema

CATEGORY = "samples"
MAX_TOKENS = 128
MOST_TOKENS = 4096
MOST_PROBLEMS = 20
EXAMPLE = '{"prompt": "Which city is the capital of France?", "expect": "Paris"}'

_FIELDS = ("id", "prompt", "messages", "expect", "regex", "schema", "max_tokens")
_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class SampleProblem:
    """One thing that is wrong: the line (``FILE:3``), the field, and what to write instead."""

    where: str
    what: str
    fix: str


class SamplesError(ValueError):
    """The samples cannot be used."""

    def __init__(self, problems: list[SampleProblem]) -> None:
        super().__init__("; ".join(f"{problem.where}: {problem.what}" for problem in problems))
        self.problems = problems


class _Fault(Exception):
    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix


def read_samples(path: Path) -> tuple[Prompt, ...]:
    """Return the samples of a file. Raises ``SamplesError`` with every problem in it, up to ``MOST_PROBLEMS``."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        fault = SampleProblem(str(path), f"cannot be read: {error.strerror or error}", "Name a file of JSON Lines.")
        raise SamplesError([fault]) from None
    except UnicodeDecodeError:
        raise SamplesError([SampleProblem(str(path), "is not UTF-8 text", "Save it as UTF-8.")]) from None
    prompts: dict[str, Prompt] = {}
    problems: list[SampleProblem] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            prompt = _read(line, number)
            if prompt.id in prompts:
                raise _Fault(f"'id' {prompt.id!r} is there already", "Give each sample its own, or leave it out.")
            prompts[prompt.id] = prompt
        except _Fault as fault:
            problems.append(SampleProblem(f"{path.name}:{number}", fault.what, fault.fix))
    if not prompts and not problems:
        problems.append(SampleProblem(path.name, "has no samples", f"Write one a line, such as {EXAMPLE}"))
    if problems:
        raise SamplesError(problems[:MOST_PROBLEMS])
    return tuple(prompts.values())


def digest_of(path: Path) -> str:
    """Return 8 hexadecimal digits that stand for the samples in a verdict."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:8]


def _read(line: str, number: int) -> Prompt:
    try:
        fields = msgspec.json.decode(line)
    except NOT_JSON as error:
        raise _Fault(f"is not JSON: {error}", f"One object a line, such as {EXAMPLE}") from None
    if not isinstance(fields, dict):
        raise _Fault("is not a JSON object", f"One object a line, such as {EXAMPLE}")
    for name in fields:
        if name not in _FIELDS:
            raise _Fault(f"has an unknown field {name!r}", f"There are {', '.join(_FIELDS)}.")
    return Prompt(
        id=f"{CATEGORY}/{_text(fields, 'id') or f'line-{number}'}",
        category=CATEGORY,
        messages=_messages(fields),
        checks=_checks(fields),
        max_tokens=_max_tokens(fields),
    )


def _messages(fields: Mapping[str, Any]) -> tuple[Message, ...]:
    prompt = _text(fields, "prompt")
    if (prompt is None) == ("messages" not in fields):
        raise _Fault("needs either 'prompt' or 'messages'", "'prompt' is one question, 'messages' a whole chat.")
    if prompt is not None:
        return user(prompt)
    messages = fields["messages"]
    fix = 'A list such as [{"role": "user", "content": "Hello"}], which ends with the user.'
    if not isinstance(messages, list) or not messages:
        raise _Fault("'messages' is not a list with messages in it", fix)
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise _Fault(f"'messages[{place}]' has no role that is one of {', '.join(_ROLES)}", fix)
        if not isinstance(message.get("content"), str) or message.keys() != {"role", "content"}:
            raise _Fault(f"'messages[{place}]' has other fields than a role and a content that is text", fix)
    if messages[-1]["role"] != "user":
        raise _Fault("'messages' does not end with the user", fix)
    return tuple(messages)


def _checks(fields: Mapping[str, Any]) -> tuple[Check, ...]:
    """What is expected; without anything, that the answer is there and no loop: the comparison counts all the same."""
    checks: list[Check] = []
    if (expected := _text(fields, "expect")) is not None:
        checks.append(Contains(expected))
    if (pattern := _text(fields, "regex")) is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise _Fault(
                f"'regex' is no regular expression: {error}", "It is Python's: `\\` is doubled in JSON."
            ) from None
        checks.append(Matches(pattern))
    if "schema" in fields:
        schema = fields["schema"]
        if not isinstance(schema, dict):
            raise _Fault(
                "'schema' is not an object", 'A JSON Schema, such as {"type": "object", "required": ["name"]}.'
            )
        if fault := unusable_schema(schema):
            raise _Fault(f"'schema' is no JSON Schema: {fault}", "See https://json-schema.org.")
        checks.append(Json(schema))
    return tuple(checks) or (NoLoop(),)


def _max_tokens(fields: Mapping[str, Any]) -> int:
    value = fields.get("max_tokens", MAX_TOKENS)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_TOKENS:
        raise _Fault(f"'max_tokens' is {value!r}", f"A number from 1 to {MOST_TOKENS}; left out it is {MAX_TOKENS}.")
    return value


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    if name not in fields:
        return None
    value = fields[name]
    if not isinstance(value, str) or not value.strip():
        raise _Fault(f"'{name}' is {value!r}", "Text that is not empty, in quotes.")
    return value
