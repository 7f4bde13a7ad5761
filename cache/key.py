"""What an answer is kept under: a digest of everything that could change it.

The canonical form, version 1, is the array ``[1, operation, model, scope, fields]`` in MessagePack, with sorted names
at every depth; the digest is its SHA-256. ``model`` is the logical name: aliases and selectors are resolved before.
``fields`` are the request's fields, unknown ones as well, but for

- those that only say how the answer is handed over, or to whom: ``model`` (above), ``stream``, ``stream_options``,
  ``user``, ``metadata``;
- those that say what holds anyway: ``n`` 1, ``logprobs`` and ``echo`` false, ``encoding_format`` "float", and null
  where OpenAI's API gives null a meaning: that of being absent. Other defaults differ from engine to engine (the
  temperature is 1 by OpenAI's word, 0.8 by llama.cpp's), so that being absent and having that value are two things.

Numbers are compared by value: 1, 1.0 and 1e0 are one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

VERSION = 1

_HANDING_OVER = frozenset({"model", "stream", "stream_options", "user", "metadata"})
_DEFAULTS: dict[str, Any] = {"n": 1, "logprobs": False, "echo": False, "encoding_format": "float"}
# fmt: off
_NULL_IS_ABSENT = frozenset((
    "audio", "best_of", "dimensions", "echo", "encoding_format", "frequency_penalty", "function_call", "functions",
    "logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "modalities", "n", "parallel_tool_calls",
    "prediction", "presence_penalty", "reasoning_effort", "response_format", "seed", "service_tier", "stop", "store",
    "suffix", "temperature", "tool_choice", "tools", "top_logprobs", "top_p",
))
# fmt: on
_EXACT = 2.0**53
_TAG = 8
"""Hexadecimal digits of a model's and a scope's hash in a name: enough to find them again, and no name to read."""


class Uncacheable(ValueError):
    """The request has no canonical form: a number that JSON allows and no engine can mean, or a broken text."""


class Key(NamedTuple):
    """Under what a request's answers are kept: one name a deployment fingerprint, all in one slot of a cluster."""

    digest: str
    stem: str

    def entry(self, fingerprint: str) -> str:
        """The name of the answer of deployments with this fingerprint."""
        return f"{self.stem}:{fingerprint}"

    def lease(self, fingerprints: Iterable[str]) -> str:
        """The name of the leave to ask an engine for an answer by one of these."""
        return f"{self.stem}!lease!{tag(','.join(sorted(fingerprints)))}"

    def flight(self, holder: str) -> str:
        """The name of the stream that carries an answer while the holder of the lease has it made."""
        return f"{self.stem}!flight!{holder}"


def make_key(operation: str, model: str, scope: str, fields: Mapping[str, bytes | msgspec.Raw]) -> Key:
    """Return the key of a request whose ``fields`` are still JSON. Raises ``Uncacheable``."""
    return _key(operation, model, scope, _canonical(fields))


class ItemKeys:
    """The keys of one request's inputs, each on its own: equal inputs of different batches have equal keys."""

    def __init__(self, operation: str, model: str, scope: str, fields: Mapping[str, bytes | msgspec.Raw]) -> None:
        """Raises ``Uncacheable``."""
        self._operation, self._model, self._scope = operation, model, scope
        self._fields = _canonical({name: value for name, value in fields.items() if name != "input"})

    def of(self, item: Any) -> Key:
        """Return the key of one decoded input: a text, or a list of tokens."""
        return _key(self._operation, self._model, self._scope, {**self._fields, "input": item})


def tag(name: str) -> str:
    """Return how a model or a scope is spelled in names, so that a pattern finds all of its entries."""
    return hashlib.sha256(name.encode()).hexdigest()[:_TAG]


def pattern(*, model: str | None = None, scope: str | None = None, digest: str = "") -> str:
    """Return the glob that matches the names of entries: of a model, a scope, a digest's beginning, or all."""
    of_scope, of_model = ("*" if name is None else tag(name) for name in (scope, model))
    return f"{of_scope}:{of_model}:{{{digest}*}}:*"


def _key(operation: str, model: str, scope: str, fields: dict[str, Any]) -> Key:
    try:
        form = _encode([VERSION, operation, model, scope, fields])
    except OverflowError as error:
        raise Uncacheable(str(error)) from None
    digest = hashlib.sha256(form).hexdigest()
    return Key(digest, f"{_tag_of(scope)}:{_tag_of(model)}:{{{digest}}}")


def _canonical(fields: Mapping[str, bytes | msgspec.Raw]) -> dict[str, Any]:
    canonical = {}
    try:
        for name, raw in fields.items():
            if name in _HANDING_OVER:
                continue
            value = _decode(raw)
            if value is None and name in _NULL_IS_ABSENT:
                continue
            if name in _DEFAULTS and value == _DEFAULTS[name] and type(value) is type(_DEFAULTS[name]):
                continue
            canonical[name] = value
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Uncacheable(str(error)) from None
    return canonical


def _number(text: str) -> float | int:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number that can be told from others")
    return int(number) if number.is_integer() and abs(number) < _EXACT else number


_decode = msgspec.json.Decoder(float_hook=_number).decode
_encode = msgspec.msgpack.Encoder(order="deterministic").encode

_tags: dict[str, str] = {}
_MOST_TAGS = 4096


def _tag_of(name: str) -> str:
    """``tag``, remembered: the same few models and scopes ask all the time."""
    known = _tags.get(name)
    if known is None:
        if len(_tags) >= _MOST_TAGS:
            _tags.clear()
        known = _tags[name] = tag(name)
    return known
