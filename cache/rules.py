"""Which requests may be answered from the cache, and whose answers may go into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec


class Mode(StrEnum):
    """Which requests are cacheable, as the operator has it."""

    AUTO = "auto"
    """All but those that ask for variety: a temperature above 0, or several choices, without a seed."""
    DETERMINISTIC = "deterministic"
    """Those whose answer should be the same each time: temperature 0, or a seed; and embeddings."""
    ALL = "all"
    OFF = "off"


class Use(StrEnum):
    """What a client may say for one request (``x-paceline-cache``)."""

    USE = "use"
    REFRESH = "refresh"
    """Ask an engine, and keep its answer."""
    SKIP = "skip"
    """Neither read nor write."""
    ONLY = "only"
    """Answer from the cache, or not at all."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What may be done for one request. ``max_age_s`` is the oldest that an entry may be, ``None`` for any age."""

    read: bool = True
    write: bool = True
    only: bool = False
    max_age_s: float | None = None


USUAL: Final = Terms()
SKIP: Final = Terms(read=False, write=False)
_OF_USE: Final = {
    Use.USE: USUAL,
    Use.REFRESH: Terms(read=False),
    Use.SKIP: SKIP,
    Use.ONLY: Terms(write=False, only=True),
}


def read_terms(use: str, cache_control: str) -> Terms:
    """Return what a client's headers ask for; ``x-paceline-cache`` comes before ``Cache-Control``.

    Of RFC 9111's request directives ``no-cache``, ``no-store``, ``max-age`` and ``only-if-cached`` have a meaning here,
    and others none. Raises ``ValueError`` with the words that ``x-paceline-cache`` can be.
    """
    if use:
        try:
            chosen = _OF_USE[Use(use.strip().lower())]
        except ValueError:
            raise ValueError(f"it is {use!r}; it can be {', '.join(Use)}") from None
        if chosen is not USUAL or not cache_control:
            return chosen
    return _from_cache_control(cache_control) if cache_control else USUAL


def _from_cache_control(text: str) -> Terms:
    words: dict[str, str] = {}
    for directive in text.lower().split(","):
        name, _, value = directive.partition("=")
        words[name.strip()] = value.strip().strip('"')
    if "no-store" in words:
        return SKIP
    if "no-cache" in words:
        return _OF_USE[Use.REFRESH]
    age = words.get("max-age", "")
    only = "only-if-cached" in words
    max_age_s = float(age) if age.isdecimal() else None
    return Terms(write=not only, only=only, max_age_s=max_age_s)


def is_cacheable(mode: Mode, operation: str, fields: Mapping[str, bytes | msgspec.Raw]) -> bool:
    """Return whether a request with these fields (still JSON) may be answered from the cache."""
    if mode is Mode.OFF:
        return False
    if mode is Mode.ALL or operation == "embeddings":
        return True
    if _value(fields, "seed") is not None:
        return True
    temperature = _value(fields, "temperature")
    if mode is Mode.DETERMINISTIC:
        return bool(temperature == 0)
    choices = _value(fields, "n")
    return temperature in (None, 0) and choices in (None, 1)


def _value(fields: Mapping[str, bytes | msgspec.Raw], name: str) -> Any:
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return _UNREADABLE


_UNREADABLE: Final = object()


_NEVER_KEPT: Final = frozenset({"content_filter", "error", "abort", "cancelled"})


def is_worth_keeping(finish_reasons: frozenset[str], *, has_limit: bool) -> bool:
    """Return whether a whole answer may be kept: never a filtered one, nor one that was cut for a reason unknown here.

    ``has_limit`` says that the request itself limits the length: then ``length`` is what it asked for.
    """
    return not finish_reasons & _NEVER_KEPT and (has_limit or "length" not in finish_reasons)
