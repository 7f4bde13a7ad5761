"""A batch of texts to embed, taken apart: each text is kept by itself, and only those that are new are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

Item = str | list[int]
Vector = dict[str, msgspec.Raw]
"""One element of the answer's ``data``, all its fields but ``index``."""


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    total_tokens: int = 0


class _Answer(msgspec.Struct):
    data: list[Vector]
    usage: _Usage = msgspec.field(default_factory=_Usage)


_input = msgspec.json.Decoder()
_answer = msgspec.json.Decoder(_Answer)
_vector = msgspec.json.Decoder(Vector)


def split(raw: bytes | msgspec.Raw) -> list[Item] | None:
    """Return the inputs of a request's ``input``; ``None`` for another shape, which is for the engine to refuse."""
    value = _input.decode(raw)
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        return None
    if all(type(each) is int for each in value):
        return [value]
    return value if all(isinstance(each, str) or _is_tokens(each) for each in value) else None


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in value)


def read_answer(body: bytes, expected: int) -> tuple[list[bytes], int] | None:
    """Return each vector as JSON, in the order of the inputs, and the prompt tokens; ``None`` for another shape."""
    try:
        answer = _answer.decode(body)
        numbered = {int(bytes(each.pop("index"))): each for each in answer.data}
    except (msgspec.DecodeError, KeyError, ValueError):
        return None
    if sorted(numbered) != list(range(expected)):
        return None
    return [msgspec.json.encode(numbered[i]) for i in range(expected)], answer.usage.prompt_tokens


def write_answer(model: str, vectors: Sequence[bytes], prompt_tokens: int) -> bytes:
    """Return the answer to a batch, put together from vectors as ``read_answer`` gave them."""
    data = [{**_vector.decode(vector), "index": i} for i, vector in enumerate(vectors)]
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    return msgspec.json.encode({"object": "list", "data": data, "model": model, "usage": usage})


def shares(tokens: int, items: Sequence[Item]) -> list[int]:
    """Share a batch's tokens out by the inputs' lengths, so that the sum stays the engine's own."""
    lengths = [len(item) for item in items]
    total = sum(lengths) or 1
    ends = [round(tokens * sum(lengths[: i + 1]) / total) for i in range(len(lengths))]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
