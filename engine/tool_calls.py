"""Tool calls in a model's answer, as the families write them, taken out of the text while it comes."""

from __future__ import annotations

import ast
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
HEAD = 1024
"""Characters within which a call has to bring its name and begin its arguments if these are to be passed on early."""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a family writes calls: behind one of ``marks``, or, if ``bare``, also as what the answer begins with.

    ``literals`` and the characters ``skipped`` may stand before, between and behind calls. A call is a JSON object;
    if ``named`` it may be a name with its arguments behind it, if ``bare`` a call as in Python. A bare one has to name
    a function that there is.
    """

    marks: tuple[str, ...]
    literals: tuple[str, ...]
    skipped: str
    bare: bool = False
    named: bool = False


HERMES = CallFormat(("<tool_call>",), ("<tool_call>", "</tool_call>"), BLANK)
MISTRAL = CallFormat(("[TOOL_CALLS]",), ("[TOOL_CALLS]",), BLANK + ",[]", named=True)
# Llama's and Gemma's, and that of a model which was told PLAIN_JSON_HELP.
BARE = CallFormat(
    ("<|python_tag|>", "```tool_code"),
    ("<|python_tag|>", "```tool_code", "```json", "```", "print("),
    BLANK + ",;[])",
    bare=True,
)
PLAIN_JSON_HELP = (
    "You may call the functions below. To call one, answer with nothing but a JSON object "
    '{"name": the function\'s name, "arguments": an object of its parameters}, or with a list of such objects.'
)
"""What a model is told whose template has no place for tools."""


def call_format(template: str) -> CallFormat:
    """The format of the family that a chat template belongs to."""
    if "[TOOL_CALLS]" in template:
        return MISTRAL
    return HERMES if "<tool_call>" in template else BARE


class CallParser:
    """Cuts one answer into content and calls; of a call the name comes first and then the arguments, piece by piece.

    A bare call has to name one of ``tools``, else it is content after all.
    """

    def __init__(self, form: CallFormat, tools: Collection[str]) -> None:
        self._form = form
        self._tools = tools if form.bare else None
        self._pythonic = tuple(f"{name}(" for name in tools) if form.bare else ()
        self._text = ""  # not yet decided on
        self._blank = ""  # content's trailing blanks: dropped if a call follows
        self._calling = form.bare
        self._passed = ""  # what stood before the call to come, to be given back if none comes
        self._call: _Call | None = None
        self._sent: int | None = None  # characters of the call's arguments, None before its name
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
        if self._call is not None:
            self._say(deltas, "" if self._sent is not None else self._passed + self._call.text)
        elif not (self.calls and self._calling and self._text in self._form.literals):
            self._say(deltas, self._passed * (not self.calls) + self._text)
        if self._blank and not self.calls:
            deltas.append({"content": self._blank})
        self._text = self._blank = ""
        self._call = None
        return deltas

    def _step(self, deltas: list[Delta]) -> bool:
        """One decision about the text at hand; False when there is none to be made before more comes."""
        if self._call is not None:
            return self._within(self._call, deltas)
        return self._between(deltas) if self._calling else self._content(deltas)

    def _content(self, deltas: list[Delta]) -> bool:
        found = [(place, mark) for mark in self._form.marks if (place := self._text.find(mark)) >= 0]
        place, mark = min(found, default=(len(self._text) - max(overlap(self._text, m) for m in self._form.marks), ""))
        self._say(deltas, self._text[:place])
        self._text = self._text[place + len(mark) :]
        if mark:
            self._passed, self._blank, self._calling = mark, "", True
        return self._calling

    def _between(self, deltas: list[Delta]) -> bool:
        """Before a call or behind one: passes over what stands there, then begins the next or goes back to content."""
        text, form = self._text, self._form
        if any(one.startswith(text) and one != text for one in (*form.literals, *self._pythonic)):
            return False
        if text.startswith(("{", *self._pythonic)):
            self._call = _Call(pythonic=text[0] != "{")
        elif passed := next((one for one in (*form.literals, *form.skipped) if text.startswith(one)), ""):
            self._passed, self._text = self._passed + passed, text[len(passed) :]
        elif form.named:
            if (brace := text.find("{")) < 0:
                return False
            self._call = _Call(name=re.split(r"\[(?:ARGS|CALL_ID)\]", text[:brace])[0].strip())
            self._text = text[brace:]
        else:
            self._say(deltas, self._passed * (not self.calls))
            self._passed, self._calling = "", False
        return bool(self._text)

    def _within(self, call: _Call, deltas: list[Delta]) -> bool:
        self._text = call.feed(self._text)
        known = call.name is not None and (self._tools is None or call.name in self._tools)
        if known and self._sent is None:
            function = {"name": call.name, "arguments": ""}
            start = {"index": self.calls, "id": uuid.uuid4().hex[:9], "type": "function", "function": function}
            deltas.append({"tool_calls": [start]})
            self.calls, self._sent = self.calls + 1, 0
        if self._sent is not None and (more := call.arguments[self._sent :]):
            deltas.append({"tool_calls": [{"index": self.calls - 1, "function": {"arguments": more}}]})
            self._sent += len(more)
        if self._sent is None and (call.done or call.name is not None or (self._form.bare and call.foreign)):
            self._say(deltas, self._passed + call.text)
            self._calling = False
        elif not call.done:
            return False
        self._call, self._sent, self._passed = None, None, ""
        return bool(self._text)

    def _say(self, deltas: list[Delta], text: str) -> None:
        text = self._blank + text
        shown = text.rstrip(BLANK)
        self._blank = text[len(shown) :]
        if shown:
            deltas.append({"content": shown})


_SIGN = re.compile(r"""\\.|["'()\[\]{}]""", re.DOTALL)
# A call's first key but for type and id, its value if that is a text, and where the arguments begin.
_HEAD = re.compile(
    r'\{\s*(?:"(?:type|id)"\s*:\s*"[^"\\]*"\s*,\s*)*"([^"\\]*)"\s*:\s*'
    r'(?:"([^"\\]*)"(?:\s*,\s*"(?:arguments|parameters)"\s*:\s*(\{))?)?'
)


class _Call:
    """One call as it comes: a JSON object, such a one behind a ``name``, or, if ``pythonic``, ``name(key=value)``.

    ``arguments`` grows as JSON text; that of a call in Python, and of one in an unusual order, comes at once when it
    is ``done``. ``foreign`` says that it begins with a key that no call has.
    """

    def __init__(self, name: str | None = None, pythonic: bool = False) -> None:
        self.text = ""
        self.name = name
        self.arguments = ""
        self.done = False
        self.foreign = False
        self._pythonic = pythonic
        self._floor = int(name is None)  # how deep the arguments lie
        self._at = self._depth = 0
        self._begin = None if name is None else 0
        self._end: int | None = None
        self._quote = ""

    def feed(self, text: str) -> str:
        """Takes what belongs to the call, and returns the rest."""
        self.text += text
        if not self._pythonic and self._begin is None and (head := _HEAD.match(self.text, 0, HEAD)):
            key, value, brace = head.groups()
            self.foreign = key not in ("name", "function", "arguments", "parameters", "type", "id")
            if key in ("name", "function"):
                self.name = value
            self._begin = head.start(3) if brace and self.name is not None else None
        while not self.done and (sign := _SIGN.search(self.text, self._at)):
            self._at = sign.end()
            self._sign(sign[0])
        if not self.done:
            self._at = max(self._at, len(self.text) - self.text.endswith("\\"))
            if self._begin is not None:
                self.arguments = self.text[self._begin : self._end]
            return ""
        rest, self.text = self.text[self._at :], self.text[: self._at]
        if self._begin is not None:
            self.arguments = self.text[self._begin : self._end]
        else:
            name, self.arguments = (_from_python if self._pythonic else _from_json)(self.text)
            self.name = self.name or name
        return rest

    def _sign(self, one: str) -> None:
        if self._quote:
            self._quote = "" if one == self._quote else self._quote
        elif one in "\"'":
            self._quote = one
        elif one in "([{":
            self._depth += 1
        elif one in ")]}":
            self._depth -= 1
            if self._depth == self._floor and self._begin is not None and self._end is None:
                self._end = self._at
            self.done = self._depth <= 0


def _from_json(text: str) -> tuple[str | None, str]:
    """The name and the arguments of a call whatever the order of its keys; no name where it is none."""
    try:
        whole = json.loads(text)
        inner = whole.get("function")
        call = inner if isinstance(inner, dict) else whole
        name = call.get("name", inner)
        arguments = call.get("arguments", call.get("parameters"))
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments if isinstance(arguments, dict) else {}, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None, "{}"
    return name if isinstance(name, str) else None, arguments or "{}"


def _from_python(text: str) -> tuple[str | None, str]:
    """The same of ``name(key=value)`` with literal values: nothing is run. No name where it is anything else."""
    name, _, inside = text.partition("(")
    try:
        call = ast.parse(f"call({inside}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            return None, "{}"
        values = {one.arg: ast.literal_eval(one.value) for one in call.keywords}
        if None in values:  # **more
            return None, "{}"
        return name, json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None, "{}"
