"""A request of OpenAI's API as one of Ollama's own: /api/chat, /api/generate (raw) or /api/embed.

What becomes an entry of ``options``: see ``_OPTIONS``. The client's own ``options`` object is merged in below those,
the operator's below that. What makes Ollama load the model again (``RELOADING``) is the operator's to say: a client's
``num_ctx`` is taken as the least context that it needs, its other reloading options are left out. ``shift`` is never
sent (in 0.32 another value reloads), ``truncate`` is always false: a prompt that is too long is refused, not cut.
Fields that nobody here knows pass at the top level as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Raw

from adapters.base import Call
from adapters.body import Body, BodyError
from adapters.errors import Rejected
from adapters.ollama.context import Need
from adapters.ollama.messages import convert
from policies.types import Operation

RELOADING: Final = frozenset(["num_ctx", "num_batch", "num_thread", "num_gpu", "main_gpu", "use_mmap", "use_mlock"])

_OPTIONS: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "seed": "seed",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "top_k": "top_k",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repeat_penalty": "repeat_penalty",
    "repetition_penalty": "repeat_penalty",
    "repeat_last_n": "repeat_last_n",
    "num_keep": "num_keep",
}
_LIMITS: Final = ("max_completion_tokens", "max_tokens")
_HANDLED: Final = frozenset(
    [
        *_OPTIONS,
        *_LIMITS,
        "model",
        "messages",
        "prompt",
        "input",
        "suffix",
        "echo",
        "best_of",
        "n",
        "stream",
        "stream_options",
        "options",
        "stop",
        "response_format",
        "format",
        "logprobs",
        "top_logprobs",
        "tools",
        "tool_choice",
        "reasoning_effort",
        "reasoning",
        "think",
        "truncate",
        "shift",
        "raw",
        "encoding_format",
        "user",
        "parallel_tool_calls",
        "_debug_render_only",
    ]
)
_ABSENT: Final = (b"", b"null", b"{}", b"[]", b"false", b"0", b"1")
_REFUSED: Final = ("n", "best_of", "echo", "logit_bias", "functions", "function_call", "grammar", "prediction")
_NO_THINKING: Final = ("none", "minimal")


@dataclass(slots=True)
class NativeRequest:
    """A request but for its context size, which may have to grow."""

    path: str
    fields: dict[str, object]
    options: dict[str, object]
    need: Need
    has_media: bool = False

    def encode(self, num_ctx: int) -> bytes:
        """The body for a context of ``num_ctx`` tokens."""
        options: dict[str, object] = {**self.options, "num_ctx": num_ctx}
        if self.path != "/api/embed":
            options["num_predict"] = self.need.num_predict(num_ctx)
        return msgspec.json.encode({**self.fields, "options": options})


def native_request(call: Call, defaults: dict[str, object]) -> NativeRequest:
    """Translate. ``defaults`` are the operator's fields for requests without them.

    Raises ``Rejected`` for what Ollama cannot do (``code`` "unsupported") and for what is wrong in the request.
    """
    try:
        return _native_request(call, defaults)
    except BodyError as error:
        raise Rejected(error.message, param=error.param) from None


def _native_request(call: Call, defaults: dict[str, object]) -> NativeRequest:
    body = call.body
    _refuse_unsupported(body)
    missing = {name: value for name, value in defaults.items() if name not in body and name != "options"}
    if missing:
        body = Body({**{name: msgspec.json.encode(value) for name, value in missing.items()}, **body.fields})
    options, least = _options(body, defaults.get("options"))
    fields: dict[str, object] = {"model": call.engine_model}
    fields.update((name, Raw(body.raw(name) or b"null")) for name in body.fields if name.lower() not in _HANDLED)
    need = Need(call.prompt_tokens or _rough_tokens(body), _max_output(call, body, options), least)
    fields["truncate"] = False
    if call.operation is Operation.EMBEDDINGS:
        fields["input"], need = _embedding_input(body, need)
        return NativeRequest("/api/embed", fields, options, need)
    fields["stream"] = True
    thinking = _think(body)
    if thinking is not None:
        fields["think"] = thinking
    if call.operation is Operation.COMPLETION:
        _completion(body, fields)
        return NativeRequest("/api/generate", fields, options, need)
    fields["messages"], has_media = convert(body.raw("messages") or b"[]")
    _tools(body, fields)
    _logprobs(fields, body.get("logprobs", bool), body.get("top_logprobs", int))
    _format(body, fields)
    return NativeRequest("/api/chat", fields, options, need, has_media)


def _refuse_unsupported(body: Body) -> None:
    for name in _REFUSED:
        if (body.raw(name) or b"") not in _ABSENT:
            raise Rejected(f"Ollama has no '{name}'", param=name, code="unsupported")


def _options(body: Body, defaults: object) -> tuple[dict[str, object], int]:
    """The options but for ``num_ctx`` and ``num_predict``, and the context that the client asks for."""
    asked = body.get("options", dict[str, Raw]) or {}
    options: dict[str, object] = dict(defaults) if isinstance(defaults, dict) else {}
    options.update((name, value) for name, value in asked.items() if name not in RELOADING)
    for name, option in _OPTIONS.items():
        raw = body.raw(name)
        if raw is not None and raw != b"null":
            options[option] = Raw(raw)
    stop = body.get("stop", str | list[str])
    if stop is not None:
        options["stop"] = [stop] if isinstance(stop, str) else stop
    least = _integer(asked.get("num_ctx"), "options.num_ctx")
    return options, least or 0


def _max_output(call: Call, body: Body, options: dict[str, object]) -> int | None:
    limit = call.max_output
    for name in _LIMITS:
        limit = limit if limit is not None else body.get(name, int)
    asked = _integer(options.pop("num_predict", None), "options.num_predict")
    if limit is None and asked is not None and asked >= 0:
        limit = asked
    return limit


def _integer(value: object, where: str) -> int | None:
    if isinstance(value, Raw):
        return Body({where: value}).get(where, int)  # type: ignore[no-any-return]
    return value if isinstance(value, int) else None


def _rough_tokens(body: Body) -> int:
    """A prompt's length where nobody has estimated it: three bytes a token."""
    return sum(len(body.raw(name) or b"") for name in ("messages", "prompt", "input", "tools")) // 3


def _think(body: Body) -> object:
    if body.raw("think") is not None:
        return Raw(body.raw("think") or b"null")
    effort = body.get("reasoning_effort", str)
    if effort is None:
        effort = (body.get("reasoning", dict[str, Any]) or {}).get("effort")
    if effort is None:
        return None
    return False if effort in _NO_THINKING else effort


def _tools(body: Body, fields: dict[str, object]) -> None:
    choice = body.get("tool_choice")
    tools = body.raw("tools")
    if tools is None or choice == "none":
        return
    if choice not in (None, "auto"):
        raise Rejected(
            "Ollama cannot be made to call a tool: its tool_choice is always auto",
            param="tool_choice",
            code="unsupported",
        )
    fields["tools"] = Raw(tools)


def _format(body: Body, fields: dict[str, object]) -> None:
    if "format" in body:
        fields["format"] = Raw(body.raw("format") or b"null")
    wanted = body.get("response_format", dict[str, Raw])
    if wanted is None:
        return
    kind = msgspec.json.decode(wanted.get("type", b'""'))
    if kind == "json_object":
        fields["format"] = "json"
    elif kind == "json_schema":
        described = Body({"response_format": wanted.get("json_schema", Raw(b"{}"))})
        schema = described.get("response_format", dict[str, Raw]) or {}
        if "schema" not in schema:
            raise Rejected("'response_format.json_schema' has no 'schema'", param="response_format")
        fields["format"] = schema["schema"]
    elif kind != "text":
        raise Rejected(f"'response_format.type' is {kind!r}", param="response_format")


def _logprobs(fields: dict[str, object], wanted: bool | None, top: int | None) -> None:
    if wanted:
        fields["logprobs"] = True
        if top:
            fields["top_logprobs"] = top


def _completion(body: Body, fields: dict[str, object]) -> None:
    prompt = body.get("prompt", str | list[Any])
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if not isinstance(prompt, str) or not prompt:
        raise Rejected(
            "Ollama completes one prompt, given as text that is not empty", param="prompt", code="unsupported"
        )
    fields["prompt"] = prompt
    suffix = body.get("suffix", str)
    if suffix:
        fields["suffix"] = suffix  # the template knows how to fill in the middle
    else:
        fields["raw"] = True
    top = body.get("logprobs", int)
    _logprobs(fields, top is not None, top)
    _format(body, fields)


def _embedding_input(body: Body, need: Need) -> tuple[object, Need]:
    """The input, and what its longest text needs: each text is read in a context of its own."""
    texts = body.get("input", str | list[Any])
    if isinstance(texts, str):
        texts = [texts]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise Rejected("Ollama embeds text, not tokens", param="input", code="unsupported")
    total = sum(map(len, texts)) or 1
    longest = max(map(len, texts))
    return texts, Need(need.prompt * longest // total, 0, need.least)
