"""What an engine wrote, and whether it looks like an answer at all."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from adapters.heard import NOT_JSON

LOOP_LENGTH = 8
"""So many equal characters, and nothing else, are a loop: broken numerics look like that ("!!!!!!!!")."""

LOOP_TEXT = 100
"""In texts of so many characters passages that come back again and again are a loop as well."""
LOOP_DISTINCT = 0.4
"""That is when fewer of all passages are distinct: each of them stands there two and a half times in the mean."""
_PASSAGE = 12

_TEMPLATE_MARKERS = re.compile(
    r"<\|[A-Za-z_]{2,30}\|>"  # ChatML, Llama 3, Phi, Granite and others
    r"|<\uff5c[^<>]{2,30}\uff5c>"  # DeepSeek
    r"|\[/?INST\]|<</?SYS>>"  # Llama 2, Mistral
    r"|</?(?:start|end)_of_turn>"  # Gemma
    r"|<(?:/s|eos|bos)>"
)

_TEXT_FIELDS = ("content", "reasoning_content", "reasoning", "text")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def streamed_text(events: bytes) -> str:
    """Join what the first choice says over whole server-sent events in OpenAI's form, reasoning included."""
    lines = (line for line in events.splitlines() if line.startswith(b"data:"))
    return "".join(_choice_text(line[5:].strip()) for line in lines)


def text_faults(text: str) -> tuple[str, ...]:
    """Return what is wrong with generated text, nothing when it is normal.

    ``empty``, ``broken Unicode``, ``loop`` (one character, or passages that come back again and again) and ``template
    marker`` (a token that should have been read by the engine).
    """
    bare = text.strip()
    if not bare:
        return ("empty",)
    faults = []
    # A forced end may cut a character in two: what stands last says nothing, unless nothing else does.
    stem = bare.rstrip(_REPLACEMENT)
    if not stem or _REPLACEMENT in stem:
        faults.append("broken Unicode")
    if (len(bare) >= LOOP_LENGTH and len(set(bare)) == 1) or _repeats(bare):
        faults.append("loop")
    if _TEMPLATE_MARKERS.search(bare):
        faults.append("template marker")
    return tuple(faults)


def stop_faults(finish_reason: str, output_tokens: int, asked_tokens: int, *, forced: bool) -> tuple[str, ...]:
    """Return ``unexpected stop`` unless the answer ended as it should: at its full length where that was ``forced``,
    else by itself or at the limit."""
    ended = output_tokens >= asked_tokens if forced else finish_reason in ("", "stop", "length")
    return () if ended else ("unexpected stop",)


def embedding_faults(body: bytes) -> tuple[str, ...]:
    """Return ``empty`` unless the answer, in OpenAI's form, holds at least one vector."""
    answer = _object(body)
    data = answer.get("data")
    first = data[0] if isinstance(data, list) and data else None
    return () if isinstance(first, dict) and first.get("embedding") else ("empty",)


def _repeats(text: str) -> bool:
    if len(text) < LOOP_TEXT:
        return False
    passages = [text[i : i + _PASSAGE] for i in range(len(text) - _PASSAGE + 1)]
    return len(set(passages)) < LOOP_DISTINCT * len(passages)


def _choice_text(event: bytes) -> str:
    choices = _object(event).get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        return ""
    delta = choice.get("delta")
    said = delta if isinstance(delta, dict) else choice
    return "".join(value for field in _TEXT_FIELDS if isinstance(value := said.get(field), str))


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(data)
    except NOT_JSON:  # "[DONE]", or nothing of ours
        return {}
    return value if isinstance(value, dict) else {}
