"""Engines' error answers, in all the forms that they come in, as EngineErrors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec

from adapters.errors import Broken, Busy, EngineError, Loading, Rejected
from adapters.heard import NOT_JSON, count_in

MAX_MESSAGE: Final = 2000
"""Characters of an engine's own words that are passed on."""

_TOO_LONG: Final = re.compile(
    r"exceed_context_size|context_length_exceeded|context (?:size|length|window)|max_model_len"
    r"|maximum model length|(?:prompt|input) is too (?:long|large)",
    re.I,
)
_LENGTHS: Final = tuple(
    re.compile(pattern, re.S)
    for pattern in (
        r"\((?P<prompt>\d+) tokens\) exceeds the available context size \((?P<context>\d+) tokens\)",
        r"context length is (?P<context>\d+) tokens.{0,300}?(?P<prompt>\d+) (?:input tokens|in the messages)",
        r"context length is (?P<context>\d+) tokens.{0,300}?at least (?P<prompt>\d+)",
        r"context length is (?:only )?(?P<context>\d+) tokens.{0,300}?requested (?P<prompt>\d+)",
    )
)
_UNSUPPORTED: Final = re.compile(
    r"not support|unsupported|enable-auto-tool-choice|tool-call-parser|\bmmproj\b|not a multimodal"
    r"|no chat template|chat template is not|does not have .{0,20}chat template|^.{0,40}field 'n':",
    re.I,
)
_USERS_FAULT: Final = re.compile(
    r"invalid (?:json|format|grammar|value|type|argument|option|image|input|schema)"
    r"|must be (?:of type|one of|at least|positive)|failed to (?:parse|initialize samplers)|parse error|type_error",
    re.I,
)
"""Mistakes of the request that some engines report as a 500."""
_LOADING: Final = re.compile(r"\bloading\b|not (?:yet )?ready|starting up|warming up", re.I)


@dataclass(frozen=True, slots=True)
class _Words:
    """What an error says, whatever its form."""

    message: str = ""
    type: str = ""
    code: str = ""
    param: str | None = None
    prompt_tokens: int | None = None
    context: int | None = None

    @property
    def all(self) -> str:
        return f"{self.type} {self.code} {self.message}"


def error_from_response(status: int, headers: Mapping[str, str], body: bytes, *, secret: str = "") -> EngineError:
    """The error that a status other than 200 and its body mean. ``secret`` (our key) is kept out of the message."""
    try:
        value = msgspec.json.decode(body)
    except NOT_JSON:
        value = body.decode(errors="replace").strip()
    return _classify(status, _read(value, secret), _retry_after_s(headers))


def error_from_event(error: object, *, secret: str = "") -> EngineError:
    """The error that an error object inside of a 200 means: its ``code`` counts where it is an HTTP status."""
    words = _read({"error": error}, secret)
    status = int(words.code) if words.code.isdecimal() else 500
    return _classify(status if 400 <= status < 600 else 500, words, None)


def _classify(status: int, words: _Words, retry_after_s: float | None) -> EngineError:
    said = words.all
    message = words.message or f"it answered with status {status} and no reason"
    if status in (401, 403):
        return Broken(f"it refused our credentials (status {status}): check its api_key")
    if status in (408, 429, 529):
        return Busy(message, retry_after_s=retry_after_s)
    if status == 503:
        kind = Loading if _LOADING.search(said) else Busy
        return kind(message, retry_after_s=retry_after_s)
    if status < 600 and _TOO_LONG.search(said) and status != 404:
        return _too_long(message, words)
    if status == 404 and "model" in said.lower():
        return Rejected(message, status=404, param="model", code="model_not_found")
    if status in (404, 405, 501):
        return Rejected(f"this engine does not offer that: {message}", code="unsupported")
    if status < 400 or status >= 600:
        return Broken(f"it answered with status {status}")
    if _UNSUPPORTED.search(said):
        return Rejected(message, param=words.param, code="unsupported")
    if status < 500:
        code = words.code if words.code and not words.code.isdecimal() else None
        return Rejected(message, status=status, param=words.param, code=code)
    if _USERS_FAULT.search(said):
        return Rejected(message, param=words.param)
    return Broken(f"it failed with status {status}: {message}")


def _too_long(message: str, words: _Words) -> Rejected:
    prompt, context = words.prompt_tokens, words.context
    if prompt is None or context is None:
        for pattern in _LENGTHS:
            if found := pattern.search(message):
                prompt, context = int(found["prompt"]), int(found["context"])
                break
    if prompt is not None and context is not None:
        at_least = "at least " if f"at least {prompt}" in message else ""
        message = f"the prompt has {at_least}{prompt} tokens and the context holds {context}"
    return Rejected(message, param=words.param or "messages", code="context_length_exceeded")


def _read(value: Any, secret: str) -> _Words:
    """Find the words in ``{"error": {…}}``, ``{"error": "…"}`` (perhaps JSON again), ``{"message": …}``.

    FastAPI says ``{"detail": …}``.
    """
    for _ in range(4):
        if isinstance(value, dict):
            inner = value.get("error", value.get("detail"))
            if inner is None:
                break
            value = inner
        elif isinstance(value, str) and value.startswith("{"):
            try:
                value = msgspec.json.decode(value)
            except NOT_JSON:
                break
        else:
            break
    if not isinstance(value, dict):
        return _Words(_clean(value, secret))
    param = value.get("param")
    return _Words(
        message=_clean(value.get("message", ""), secret),
        type=_clean(value.get("type") or "", secret),
        code=_clean(value.get("code") or "", secret),
        param=_clean(param, secret).removeprefix("body.") if isinstance(param, str) else None,
        prompt_tokens=count_in(value.get("n_prompt_tokens")),
        context=count_in(value.get("n_ctx")),
    )


def _clean(value: object, secret: str) -> str:
    text = value if isinstance(value, str) else "" if value is None else msgspec.json.encode(value).decode()
    if secret:
        text = text.replace(secret, "…")
    return text[:MAX_MESSAGE]


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """``Retry-After`` in seconds, from either of its forms; ``None`` when absent or nonsense."""
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    try:
        return max(float(text), 0.0)
    except ValueError:
        pass
    try:
        return max((parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return None
