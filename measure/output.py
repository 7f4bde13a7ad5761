"""What an engine wrote, and whether it looks like an answer at all."""

from __future__ import annotations

from typing import Any

import msgspec

LOOP_LENGTH = 8
"""So many equal characters, and nothing else, are a loop: broken numerics look like that ("!!!!!!!!")."""

_TEXT_FIELDS = ("content", "reasoning_content", "reasoning", "text")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def streamed_text(events: bytes) -> str:
    """Join what the first choice says over whole server-sent events in OpenAI's form, reasoning included."""
    lines = (line for line in events.splitlines() if line.startswith(b"data:"))
    return "".join(_choice_text(line[5:].strip()) for line in lines)


def text_faults(text: str) -> tuple[str, ...]:
    """Return what is wrong with generated text: ``empty``, ``broken Unicode``, ``loop``. Empty when it is normal."""
    bare = text.strip()
    if not bare:
        return ("empty",)
    faults = []
    # A forced end may cut a character in two: what stands last says nothing, unless nothing else does.
    stem = bare.rstrip(_REPLACEMENT)
    if not stem or _REPLACEMENT in stem:
        faults.append("broken Unicode")
    if len(bare) >= LOOP_LENGTH and len(set(bare)) == 1:
        faults.append("loop")
    return tuple(faults)


def embedding_faults(body: bytes) -> tuple[str, ...]:
    """Return ``empty`` unless the answer, in OpenAI's form, holds at least one vector."""
    answer = _object(body)
    data = answer.get("data")
    first = data[0] if isinstance(data, list) and data else None
    return () if isinstance(first, dict) and first.get("embedding") else ("empty",)


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
    except msgspec.DecodeError:  # "[DONE]", or nothing of ours
        return {}
    return value if isinstance(value, dict) else {}
