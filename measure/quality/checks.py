"""Checkers: each looks at a reply and says what is wrong with it, or ``""``. Pure and strict about form, not style."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from adapters.heard import NOT_JSON
from measure.quality.languages import language_of
from measure.quality.reply import Reply
from measure.quality.schemas import schema_problem
from measure.quality.text import loops

_FENCE = re.compile(r"```([\w+-]*)[^\S\n]*\n(.*?)\n?```", re.DOTALL)
_BULLET = re.compile(r"\s*[-*•+]\s+\S")
_NUMBERED = re.compile(r"\s*(\d+)[.)]\s+\S")
_NUMBER = re.compile(r"(?<![\w.])-?\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\w)|(?<![\w.])-?\d+(?:\.\d+)?(?!\w)")
_SENTENCE_END = re.compile(r"[.!?…。！？]+(?=[\s\"'”’)]|$)")
_SEPARATOR = re.compile(r":?-+:?")


class Check(Protocol):
    """One condition on a reply."""

    def problem(self, reply: Reply) -> str:
        """Return what is wrong, completing "the answer …"; ``""`` when nothing is."""
        ...


@dataclass(frozen=True, slots=True)
class Json:
    """The whole answer is JSON that a schema accepts; one code fence around it is allowed."""

    schema: Mapping[str, Any]

    def problem(self, reply: Reply) -> str:
        text = reply.text.strip()
        if (fence := _FENCE.fullmatch(text)) is not None:
            text = fence[2]
        return json_problem(text, self.schema)


@dataclass(frozen=True, slots=True)
class Bullets:
    """The answer is a list of ``count`` bullets, with at most one line before it and one after it."""

    count: int

    def problem(self, reply: Reply) -> str:
        return _list_problem(reply.text, self.count, "bullets", lambda line, _: _BULLET.match(line) is not None)


@dataclass(frozen=True, slots=True)
class Numbered:
    """The answer is a list numbered 1 to ``count``, with at most one line before it and one after it."""

    count: int

    def problem(self, reply: Reply) -> str:
        def is_item(line: str, place: int) -> bool:
            found = _NUMBERED.match(line)
            return found is not None and int(found[1]) == place

        return _list_problem(reply.text, self.count, "numbered items", is_item)


@dataclass(frozen=True, slots=True)
class Table:
    """The answer has a Markdown table of ``columns`` columns, a head and ``rows`` rows below it."""

    columns: int
    rows: int

    def problem(self, reply: Reply) -> str:
        lines = [line.strip() for line in reply.text.splitlines() if line.count("|") >= self.columns - 1]
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        if len(cells) < 2 or not all(_SEPARATOR.fullmatch(cell) for cell in cells[1]):
            return "has no Markdown table"
        if any(len(row) != self.columns for row in cells):
            return f"has a table of other than {self.columns} columns"
        rows = len(cells) - 2
        return "" if rows == self.rows else f"has {rows} table rows, not {self.rows}"


@dataclass(frozen=True, slots=True)
class Code:
    """The answer has one code fence, and its code says each of ``parts``."""

    parts: tuple[str, ...] = ()

    def problem(self, reply: Reply) -> str:
        fences = _FENCE.findall(reply.text)
        if len(fences) != 1 or reply.text.count("```") != 2:
            return "does not have exactly one code fence"
        missing = [part for part in self.parts if part not in fences[0][1]]
        return f"has no {missing[0]!r} in its code" if missing else ""


@dataclass(frozen=True, slots=True)
class Language:
    """The answer is written in a language: ``de``, ``en``, ``es`` or another that ``language_of`` knows."""

    code: str

    def problem(self, reply: Reply) -> str:
        found = language_of(reply.text)
        return "" if found == self.code else f"is written in {found or 'no language that can be told'}, not {self.code}"


@dataclass(frozen=True, slots=True)
class Says:
    """The answer has one of these words or phrases, as whole words; capital letters do not matter."""

    any_of: tuple[str, ...]

    def problem(self, reply: Reply) -> str:
        said = any(_has_word(reply.text, word) for word in self.any_of)
        return "" if said else f"does not say {' or '.join(map(repr, self.any_of))}"


@dataclass(frozen=True, slots=True)
class Avoids:
    """The answer is there, and has none of these words or phrases."""

    words: tuple[str, ...]

    def problem(self, reply: Reply) -> str:
        if not reply.text.strip():
            return "is empty"
        said = [word for word in self.words if _has_word(reply.text, word)]
        return f"says {said[0]!r}" if said else ""


@dataclass(frozen=True, slots=True)
class InOrder:
    """The answer has all of these words, first mentioned in this order."""

    words: tuple[str, ...]

    def problem(self, reply: Reply) -> str:
        places = [_place(reply.text, word) for word in self.words]
        if -1 in places:
            return f"does not say {self.words[places.index(-1)]!r}"
        return "" if places == sorted(places) else "has them in another order"


@dataclass(frozen=True, slots=True)
class Number:
    """The last number in the answer is this one."""

    value: float

    def problem(self, reply: Reply) -> str:
        numbers = _NUMBER.findall(reply.text)
        if not numbers:
            return "has no number"
        last = float(numbers[-1].replace(",", ""))
        return "" if abs(last - self.value) < 1e-9 * max(1.0, abs(self.value)) else f"says {last:g}, not {self.value:g}"


@dataclass(frozen=True, slots=True)
class Words:
    """The answer has ``least`` to ``most`` words."""

    least: int
    most: int

    def problem(self, reply: Reply) -> str:
        count = len(re.findall(r"\w+(?:['’.-]\w+)*", reply.text))
        return "" if self.least <= count <= self.most else f"has {count} words, not {self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class Sentences:
    """The answer has exactly so many sentences."""

    count: int

    def problem(self, reply: Reply) -> str:
        count = len(_SENTENCE_END.findall(reply.text.strip()))
        return "" if count == self.count else f"has {count} sentences, not {self.count}"


@dataclass(frozen=True, slots=True)
class Matches:
    """A regular expression is found in the answer, or (``whole``) matches all of it but for space around it."""

    pattern: str
    whole: bool = False

    def problem(self, reply: Reply) -> str:
        text = reply.text.strip()
        found = re.fullmatch(self.pattern, text) if self.whole else re.search(self.pattern, text)
        return "" if found else f"does not match {self.pattern!r}"


@dataclass(frozen=True, slots=True)
class Equals:
    """The answer is this text, but for space and capital letters, and quotes or a full stop around it."""

    text: str

    def problem(self, reply: Reply) -> str:
        return "" if _bare(reply.text) == _bare(self.text) else f"is not {self.text!r}"


@dataclass(frozen=True, slots=True)
class Contains:
    """This text is somewhere in the answer; space and capital letters do not matter."""

    text: str

    def problem(self, reply: Reply) -> str:
        return (
            ""
            if " ".join(self.text.casefold().split()) in " ".join(reply.text.casefold().split())
            else (f"does not contain {self.text!r}")
        )


@dataclass(frozen=True, slots=True)
class Ends:
    """The answer comes to an end before its limit, and has something in it."""

    def problem(self, reply: Reply) -> str:
        if not reply.written.strip():
            return "is empty"
        return "does not come to an end" if reply.was_cut else ""


@dataclass(frozen=True, slots=True)
class NoLoop:
    """The answer is there and does not go round in circles."""

    def problem(self, reply: Reply) -> str:
        if not reply.written.strip():
            return "is empty"
        return "repeats itself over and over" if loops(reply.written) else ""


@dataclass(frozen=True, slots=True)
class Calls:
    """The answer is one call of a function, with arguments that a schema accepts."""

    name: str
    arguments: Mapping[str, Any]

    def problem(self, reply: Reply) -> str:
        if len(reply.calls) != 1:
            return f"makes {len(reply.calls) or 'no'} calls, not one"
        call = reply.calls[0]
        if call.name != self.name:
            return f"calls {call.name!r}, not {self.name!r}"
        fault = json_problem(call.arguments, self.arguments)
        return f"calls {self.name} with arguments that will not do: it {fault}" if fault else ""


def json_problem(text: str, schema: Mapping[str, Any]) -> str:
    """Return what is wrong with ``text`` as JSON of a schema, completing "the answer …"; ``""`` when nothing is."""
    try:
        value = msgspec.json.decode(text.encode())
    except (UnicodeEncodeError, *NOT_JSON):
        return "is not JSON"
    fault = schema_problem(value, schema)
    return f"is JSON of another form: {fault}" if fault else ""


def _list_problem(text: str, count: int, what: str, is_item: Any) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    items: list[int] = []
    for index, line in enumerate(lines):
        if is_item(line, len(items) + 1):
            items.append(index)
    if len(items) != count:
        return f"has {len(items)} {what}, not {count}"
    if items[-1] - items[0] != count - 1 or items[0] > 1 or len(lines) - items[-1] > 2:
        return "has other lines in or around its list"
    return ""


def _has_word(text: str, word: str) -> bool:
    return _place(text, word) >= 0


def _place(text: str, word: str) -> int:
    found = re.search(rf"(?<!\w){re.escape(word.casefold())}(?!\w)", text.casefold())
    return -1 if found is None else found.start()


def _bare(text: str) -> str:
    return " ".join(text.casefold().split()).strip(" \"'“”.`*")
