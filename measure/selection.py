"""Selections of records: filters in one string, such as ``engine=llamacpp,precision=int8|int4,since=2026-12-01``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NamedTuple

from measure.record_fields import FIELDS, IDENTITY_DIGITS, MEANT, Field, Test, identity
from measure.records import Kind, Record

_SHORTEST_IDENTITY = 4
_NAMES_SHOWN = 6


class SelectionError(ValueError):
    """A selection that says nothing, or finds nothing; ``fix`` is what to write instead."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class Term(NamedTuple):
    """One condition: ``any`` of the tests has to hold."""

    text: str
    name: str
    tests: tuple[Test, ...]

    def matches(self, record: Record) -> bool:
        """Whether the record fulfils it."""
        return any(test(record) for test in self.tests)


@dataclass(frozen=True, slots=True)
class Selection:
    """Conditions that all have to hold. Without any, it is every record."""

    text: str
    terms: tuple[Term, ...]

    @classmethod
    def parse(cls, text: str) -> Selection:
        """Read ``NAME=VALUE[|VALUE…][,NAME=VALUE…]``. Raises ``SelectionError`` that names the nearest valid name.

        ``*`` in a text stands for anything, and case does not matter. A word alone is a deployment's id or (the
        beginning of) a record's.
        """
        return cls(text, tuple(_term(part.strip()) for part in text.split(",") if part.strip()))

    def matches(self, record: Record) -> bool:
        """Whether the record fulfils all conditions."""
        return all(term.matches(record) for term in self.terms)

    def names(self, name: str) -> bool:
        """Whether there is a condition on the field ``name``."""
        return any(term.name == name for term in self.terms)

    def of(self, records: Sequence[Record]) -> list[Record]:
        """Return those that it selects, in their order. Raises ``SelectionError`` that says why there is none."""
        found = [record for record in records if self.matches(record)]
        if not found:
            raise self._nothing(records)
        return found

    def alone(self, records: Sequence[Record]) -> list[Record]:
        """Return as ``of`` does, less those made beside a neighbour, unless it asks for them or finds nothing else."""
        found = self.of(records)
        without = [record for record in found if record.kind is not Kind.PAIR]
        return found if self.names("kind") or not without else without

    def _nothing(self, records: Sequence[Record]) -> SelectionError:
        if not records:
            return SelectionError("there are no records yet", "`paceline bench` makes some.")
        left = list(records)
        for term in self.terms:
            kept = [record for record in left if term.matches(record)]
            if not kept:
                among = "" if len(left) == len(records) else " among those that fulfil the rest"
                return SelectionError(f"no record has {term.text}{among}", _there_are(term.name, left))
            left = kept
        raise AssertionError("the selection finds records")


def _term(part: str) -> Term:
    name, separator, values = part.partition("=")
    if not separator:
        return Term(f"the id {part!r}", "", (_named(part),))
    name = name.strip().lower()
    field = FIELDS.get(name)
    if field is None:
        raise SelectionError(f"{name!r} in {part!r} is no field of a record", _instead(name))
    return Term(part, name, tuple(_test(name, field, value.strip()) for value in values.split("|")))


def _test(name: str, field: Field, value: str) -> Test:
    if field.vocabulary and "*" not in value and value.lower() not in field.vocabulary:
        near = get_close_matches(value.lower(), field.vocabulary, n=1, cutoff=0.5)
        hint = f"Did you mean {name}={near[0]}? " if near else ""
        raise SelectionError(f"{name}={value} cannot be", f"{hint}It is one of {', '.join(field.vocabulary)}.")
    try:
        return field.test(value)
    except ValueError as error:
        raise SelectionError(f"{name}={value} cannot be", f"It is {error}.") from None


def _named(word: str) -> Test:
    begins = (
        word.lower() if re.fullmatch(rf"[0-9a-f]{{{_SHORTEST_IDENTITY},{IDENTITY_DIGITS}}}", word.lower()) else None
    )
    return lambda record: record.deployment == word or (begins is not None and identity(record).startswith(begins))


def _instead(name: str) -> str:
    near = [MEANT[name]] if name in MEANT else get_close_matches(name, FIELDS, n=2, cutoff=0.5)
    return (f"Did you mean {' or '.join(near)}? " if near else "") + f"There are: {', '.join(FIELDS)}."


def _there_are(name: str, records: Sequence[Record]) -> str:
    read = FIELDS[name].read if name else (lambda record: record.deployment)
    counts = Counter(read(record) or "(none)" for record in records)
    shown = [f"{value} ({count})" for value, count in counts.most_common(_NAMES_SHOWN)]
    more = f" and {len(counts) - len(shown)} more" if len(counts) > len(shown) else ""
    return f"On record: {name or 'deployment'} {', '.join(shown)}{more}."
