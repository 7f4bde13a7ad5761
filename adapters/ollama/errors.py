"""What Ollama's errors mean. Its status alone does not tell: users' mistakes come as 500s, 0.32 puts JSON into text."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from adapters.errors import Broken, Busy, EngineError, Loading, Rejected

_TEXT_LIMIT: Final = 600

_CONTEXT: Final = re.compile(r"exceeds? the (available )?context|exceed_context_size|exceeds maximum context")
_UNSUPPORTED: Final = re.compile(r"does not support|not supported|no longer compatible|only supports one image")
_USERS_MISTAKE: Final = re.compile(
    r"option \"\w+\" must be|invalid format|invalid JSON schema|invalid option|unable to (decode|process) image"
    r"|invalid image|failed to (decode|process) (image|inputs)|error parsing grammar"
)
_LOADING: Final = re.compile(r"loading model|model is loading|server loading")
_BUSY: Final = re.compile(r"server busy|too many|maximum pending requests")
_NO_MODEL: Final = re.compile(r"model ['\"]?.*['\"]? not found|no such model|try pulling it first")


class _Inner(msgspec.Struct):
    message: str = ""
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None


class _Wrapped(msgspec.Struct):
    error: _Inner


class _Plain(msgspec.Struct):
    error: str


class OllamaFault(msgspec.Struct, frozen=True):
    """An error's text, unwrapped, and the two numbers of a prompt that is too long, where it names them."""

    text: str
    prompt_tokens: int | None = None
    context: int | None = None


def unwrap(body: bytes) -> OllamaFault:
    """Read an error body: ``{"error": text}``, the same with llama.cpp's error as JSON in the text, or plain text."""
    try:
        text = msgspec.json.decode(body, type=_Plain).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = body.decode("utf-8", "replace").strip()
    return unwrap_text(text)


def unwrap_text(text: str) -> OllamaFault:
    """The same for the text of an ``error`` field that has already been read."""
    if text.startswith("{"):
        try:
            inner = msgspec.json.decode(text, type=_Wrapped).error
        except msgspec.DecodeError:
            return OllamaFault(text[:_TEXT_LIMIT])
        return OllamaFault(inner.message[:_TEXT_LIMIT], inner.n_prompt_tokens, inner.n_ctx)
    return OllamaFault(text[:_TEXT_LIMIT])


def fault_error(status: int, fault: OllamaFault, engine: str) -> EngineError:
    """The EngineError for an HTTP status and what Ollama said with it. The text counts for more than the status."""
    text = fault.text or f"HTTP {status}"
    if _CONTEXT.search(text):
        return Rejected(text, engine=engine, param="messages", code="context_length_exceeded")
    if status == 429 or _BUSY.search(text):
        return Busy(f"{engine}: {text}", engine=engine)
    if _LOADING.search(text):
        return Loading(f"{engine}: {text}", engine=engine)
    if status == 404 and _NO_MODEL.search(text):
        return Rejected(text, status=404, engine=engine, param="model", code="model_not_found")
    if status == 501 or _UNSUPPORTED.search(text):
        return Rejected(text, engine=engine, code="unsupported")
    if _USERS_MISTAKE.search(text) or status in (400, 413, 422):
        return Rejected(text, status=status if 400 <= status < 500 else 400, engine=engine)
    if status in (401, 403):
        return Broken(f"{engine} refuses Paceline's requests (HTTP {status}): check its key and address", engine=engine)
    if status == 503:
        return Busy(f"{engine}: {text}", engine=engine)
    return Broken(f"{engine} answered HTTP {status}: {text}", engine=engine)
