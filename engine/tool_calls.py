"""Tool calls in a model's answer, as the families write them, taken out of the text while it comes."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from engine.detokenizer import overlap

Delta = dict[str, Any]
"""A piece of an answer in the form of ``choices[].delta`` in OpenAI's streams."""
BLANK = " \t\r\n"
KEYS = ("name", "arguments", "parameters", "function", "type", "id")


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a family writes calls: behind one of ``marks``, or, if ``bare``, as JSON that the answer begins with.

    ``literals`` and the characters ``skipped`` may stand before, between and behind calls. ``named`` calls may be
    written as a name with the arguments behind it.
    """

    marks: tuple[str, ...]
    literals: tuple[str, ...]
    skipped: str
    bare: bool = False
    named: bool = False


HERMES = CallFormat(("<tool_call>",), ("<tool_call>", "</tool_call>"), BLANK)
MISTRAL = CallFormat(("[TOOL_CALLS]",), ("[TOOL_CALLS]",), BLANK + ",[]", named=True)
LLAMA = CallFormat(("<|python_tag|>",), ("<|python_tag|>",), BLANK + ";", bare=True)
PLAIN_JSON = CallFormat((), ("```json", "```"), BLANK + ",[]", bare=True)
PLAIN_JSON_HELP = (
    "You may call the functions below. To call one, answer with nothing but a JSON object "
    '{"name": the function\'s name, "arguments": an object of its parameters}, or with a list of such objects.'
)
"""What a model is told whose template has no place for tools."""


def call_format(template: str) -> CallFormat:
    """The format of the family that a chat template belongs to; plain JSON for one that knows of no tools."""
    if "[TOOL_CALLS]" in template:
        return MISTRAL
    if "<tool_call>" in template:
        return HERMES
    return LLAMA if "tools" in template else PLAIN_JSON


class CallParser:
    """Cuts one answer into content and calls; of a call the name comes first and then the arguments, piece by piece.

    A bare call has to name one of ``tools``, else its JSON is content after all; not so if calls are ``forced``.
    """

    def __init__(self, form: CallFormat, tools: Collection[str], forced: bool = False) -> None:
        self._form = form
        self._tools = tools
        self._forced = forced
        self._text = ""  # not yet decided on
        self._blank = ""  # content's trailing blanks: dropped if a call follows
        self._bare = form.bare
        self._calling = False
        self._tentative = ""  # what a bare call began with, to be given back if it is none
        self._call: _Call | None = None
        self._sent = 0
        self.calls = 0

    def feed(self, text: str) -> list[Delta]:
        """What this text completes, in order."""
        self._text += text
        deltas: list[Delta] = []
        while self._step(deltas):
            pass
        return deltas

    def finish(self) -> list[Delta]:
        """What was held back: the answer is over."""
        deltas: list[Delta] = []
        if self._call is None:
            self._say(deltas, self._tentative * (not self.calls) + self._text)
        elif not self._announced:
            self._say(deltas, self._tentative + self._call.text)
        if self._blank and not self.calls:
            deltas.append({"content": self._blank})
        self._text = self._blank = ""
        self._call = None
        return deltas

    @property
    def _announced(self) -> bool:
        return self._sent >= 0

    def _step(self, deltas: list[Delta]) -> bool:
        """One decision about the text at hand; False when there is none to be made before more comes."""
        if self._call is not None:
            return self._continue(self._call, deltas)
        return self._between(deltas) if self._calling else self._content(deltas)

    def _content(self, deltas: list[Delta]) -> bool:
        if self._bare:
            start = self._text.lstrip(BLANK)
            opening = (*self._form.literals, "{", *("[" * ("[" in self._form.skipped)))
            if not start or any(one.startswith(start) and one != start for one in opening):
                return False
            self._bare = False
            if start.startswith(opening):
                self._calling = True
                return True
        places = [(place, mark) for mark in self._form.marks if (place := self._text.find(mark)) >= 0]
        if places:
            place, mark = min(places)
            self._say(deltas, self._text[:place])
            self._text, self._tentative, self._blank = self._text[place + len(mark) :], mark, ""
            self._calling = True
            return True
        keep = max((overlap(self._text, mark) for mark in self._form.marks), default=0)
        self._say(deltas, self._text[: len(self._text) - keep])
        self._text = self._text[len(self._text) - keep :]
        return False

    def _between(self, deltas: list[Delta]) -> bool:
        """Before a call or behind one: passes over what stands there, then begins the next or goes back to content."""
        text = self._text
        for literal in self._form.literals:
            if text.startswith(literal):
                return self._pass(len(literal))
        if not text or any(literal.startswith(text) for literal in self._form.literals):
            return False
        if text[0] in self._form.skipped:
            return self._pass(1)
        if text[0] == "{":
            self._call, self._sent = _Call(), -1
        elif self._form.named and (brace := text.find("{")) >= 0:
            name = re.split(r"\[(?:ARGS|CALL_ID)\]", text[:brace])[0].strip()
            self._call, self._sent = _Call(f'{{"name": {json.dumps(name)}, "arguments": ', floor=1), -1
            self._text = text[brace:]
        elif self._form.named:
            return False
        else:
            self._calling = False
            self._say(deltas, self._tentative * (not self.calls))
            self._tentative = ""
        return True

    def _pass(self, count: int) -> bool:
        self._tentative += self._text[:count]
        self._text = self._text[count:]
        return True

    def _continue(self, call: _Call, deltas: list[Delta]) -> bool:
        self._text = call.feed(self._text)
        known = call.name is not None and (self._forced or not self._form.bare or call.name in self._tools)
        if known and not self._announced:
            function = {"name": call.name, "arguments": ""}
            start = {"index": self.calls, "id": uuid.uuid4().hex[:9], "type": "function", "function": function}
            deltas.append({"tool_calls": [start]})
            self.calls, self._sent = self.calls + 1, 0
        if self._announced and len(call.arguments) > self._sent:
            piece = {"index": self.calls - 1, "function": {"arguments": call.arguments[self._sent :]}}
            deltas.append({"tool_calls": [piece]})
            self._sent = len(call.arguments)
        if not self._announced and (call.done or call.name is not None or (self._form.bare and call.foreign)):
            self._say(deltas, self._tentative + call.text)
            self._calling = self._bare = False
        elif not call.done:
            return False
        self._call, self._tentative = None, ""
        return bool(self._text)

    def _say(self, deltas: list[Delta], text: str) -> None:
        text = self._blank + text
        shown = text.rstrip(BLANK) if self._form.marks else text
        self._blank = text[len(shown) :]
        if shown:
            deltas.append({"content": shown})


class _Call:
    """One call's JSON object as it comes. ``arguments`` grows as text; ``floor`` is the depth at which it is whole.

    ``foreign`` says that it has a key that no call has.
    """

    def __init__(self, head: str = "", floor: int = 0) -> None:
        self.text = ""
        self.name: str | None = None
        self.arguments = ""
        self.done = False
        self.foreign = False
        self._floor = floor
        self._at = self._depth = self._string = 0
        self._value: int | None = None
        self._key = ""
        self._quoted = self._escaped = False
        self.feed(head)

    def feed(self, text: str) -> str:
        """Takes what belongs to the object, and returns the rest."""
        self.text += text
        while self._at < len(self.text) and not self.done:
            self._at += 1
            self._character(self.text[self._at - 1])
        rest, self.text = self.text[self._at :], self.text[: self._at]
        if self._value is not None and self._key in ("arguments", "parameters"):
            value = self.text[self._value :].lstrip()
            if value.startswith("{"):
                self.arguments = value if self._depth > 1 else value.rstrip()
        return rest

    def _character(self, one: str) -> None:
        if self._quoted:
            if self._escaped or one == "\\":
                self._escaped = not self._escaped
            elif one == '"':
                self._quoted = False
                if self._value is None:
                    self._key = str(_plain(self.text[self._string : self._at]))
                    self.foreign = self.foreign or self._key not in KEYS
        elif one == '"':
            self._quoted, self._string = True, self._at - 1
        elif one in "{[":
            self._depth += 1
        elif one in "}]":
            self._depth -= 1
            if self._depth <= self._floor:
                self._end(self._at - (self._floor == 0))
                self.done = True
                self.arguments = self.arguments or "{}"
        elif self._depth == 1 and one == ":":
            self._value = self._at
        elif self._depth == 1 and one == ",":
            self._end(self._at - 1)

    def _end(self, place: int) -> None:
        """A value at the object's own level ends at ``place``."""
        if self._value is None:
            return
        raw = self.text[self._value : place].strip()
        value, self._value = _plain(raw), None
        if self._key == "function" and isinstance(value, dict):
            self.name = value.get("name")
            self.arguments = json.dumps(value.get("arguments", value.get("parameters", {})), ensure_ascii=False)
        elif self._key in ("name", "function") and isinstance(value, str):
            self.name = value
        elif self._key in ("arguments", "parameters"):
            self.arguments = raw if raw.startswith("{") else value if isinstance(value, str) else "{}"


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
