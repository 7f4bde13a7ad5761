"""Messages to a prompt by the model's chat template, and its answer back to content, reasoning and tool calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from engine.config import read_json
from engine.detokenizer import overlap
from engine.errors import BrokenModel, InvalidRequest
from engine.gguf_file import open_gguf
from engine.sandbox import Sandbox
from engine.tool_calls import BARE, BLANK, PLAIN_JSON_HELP, CallParser, Delta, call_format

Message = Mapping[str, Any]
TAGS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
TOKENS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
NEEDS = "a call needs a function with a name and arguments in JSON"
# What a template that meets messages it was not made for can raise, beside jinja2's own errors.
FAILURES = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
    MemoryError,
)


class Dialogue:
    """A model's chat template and the conventions that it shows."""

    def __init__(self, template: str | None, tokens: Mapping[str, str], tool_template: str | None = None) -> None:
        self._tokens = dict(tokens)
        environment = self._environment = Sandbox()
        try:
            self._plain = environment.template("default", template) if template else None
            self._tools = environment.template("tool_use", tool_template) if tool_template else self._plain
        except TemplateError as error:
            raise BrokenModel(f"the chat template cannot be read: {error}") from error
        source = tool_template or template or ""
        self._knows_tools = "tools" in source
        self._form = call_format(source)
        self._tags = next((tags for tags in TAGS if tags[1] in source), None)

    @property
    def chats(self) -> bool:
        """Whether there is a template for messages."""
        return self._plain is not None

    @classmethod
    def open(cls, path: Path) -> Dialogue:
        """Of a folder or a GGUF file; raises ``BrokenModel`` when what is there cannot be read."""
        if path.is_file():
            get = open_gguf(path).get
            texts = get("tokenizer.ggml.tokens", [])
            ids = {name: get(f"tokenizer.ggml.{kind}_token_id") for name, kind in TOKENS.items()}
            tokens = {name: texts[number] for name, number in ids.items() if number is not None and number < len(texts)}
            return cls(get("tokenizer.chat_template"), tokens, get("tokenizer.chat_template.tool_use"))
        settings = read_json(path / "tokenizer_config.json") if (path / "tokenizer_config.json").is_file() else {}
        written = {name: settings[name] for name in TOKENS if settings.get(name)}
        tokens = {name: token["content"] if isinstance(token, dict) else token for name, token in written.items()}
        templates = settings.get("chat_template")
        if (path / "chat_template.jinja").is_file():
            templates = (path / "chat_template.jinja").read_text(encoding="utf-8")
        elif (path / "chat_template.json").is_file():
            templates = read_json(path / "chat_template.json").get("chat_template")
        if isinstance(templates, list):
            named = {one["name"]: one["template"] for one in templates}
            return cls(named.get("default"), tokens, named.get("tool_use"))
        return cls(templates, tokens)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **arguments: Any,
    ) -> str:
        """The prompt; to be encoded without special tokens added, since the template writes them.

        ``tools`` are as in OpenAI's API, ``arguments`` more of the template's variables (``enable_thinking``). Raises
        ``InvalidRequest`` naming the field when the template refuses the messages, or there is none.
        """
        template = self._tools if tools else self._plain
        if template is None:
            raise InvalidRequest("this model has no chat template; /v1/completions takes a prompt as it is", "messages")
        plain = [_plain(message, place) for place, message in enumerate(messages)]
        if not self._knows_tools:
            plain = _without_tools(plain, tools or ())
        facts = {**self._tokens, **arguments, "add_generation_prompt": add_generation_prompt}
        self._environment.begin()
        try:
            return template.render(messages=plain, tools=list(tools) if tools else None, documents=None, **facts)
        except FAILURES as error:
            raise InvalidRequest(
                f"the {template.name} chat template refuses these messages: {error}", "messages"
            ) from error

    def parser(self, prompt: str, tools: Iterable[str] = (), forced: bool = False) -> AnswerParser:
        """A parser of one answer to ``prompt``. ``tools`` are the names that may be called.

        ``forced`` is for an answer that a structure makes a call: JSON of name and arguments, or a list of them.
        """
        names = frozenset(tools)
        calls = CallParser(BARE if forced else self._form, names) if names else None
        return AnswerParser(None if forced else self._tags, prompt, calls)


class AnswerParser:
    """Cuts one answer's text into deltas of ``reasoning_content``, ``content`` and ``tool_calls``, as it comes.

    Reasoning is what stands between the tags that the prompt has opened or that the answer begins with, without the
    blanks around it. All content deltas together are the text, but for those, and blanks beside calls.
    """

    def __init__(self, tags: tuple[str, str] | None, prompt: str, calls: CallParser | None) -> None:
        self._calls = calls
        self._tags = tags
        self._state = "content" if tags is None else "start"
        if tags is not None and prompt.rstrip(BLANK).endswith(tags[0]):
            self._state = "reasoning"
        self._text = ""
        self._reasoned = False

    @property
    def calls(self) -> int:
        """Tool calls so far; with any, the answer's ``finish_reason`` is ``tool_calls`` where it would be ``stop``."""
        return self._calls.calls if self._calls else 0

    def feed(self, text: str) -> list[Delta]:
        """What this text completes, in order."""
        deltas: list[Delta] = []
        if self._state != "content" and self._tags is not None:
            text = self._reasoning(self._text + text, self._tags, deltas)
        if self._state == "content" and text:
            deltas += self._calls.feed(text) if self._calls else [{"content": text}]
        return deltas

    def finish(self) -> list[Delta]:
        """What was held back: the answer is over."""
        held, self._text = self._text, ""
        if self._state == "reasoning":
            return [{"reasoning_content": held.rstrip(BLANK)}] if held.strip(BLANK) else []
        if self._state == "after":
            held = ""
        self._state = "content"
        return self.feed(held) + (self._calls.finish() if self._calls else [])

    def _reasoning(self, text: str, tags: tuple[str, str], deltas: list[Delta]) -> str:
        """Takes the reasoning out of the text; what is returned is content, once the state says so."""
        opening, closing = tags
        self._text = ""
        if self._state == "start":
            start = text.lstrip(BLANK)
            if opening.startswith(start[: len(opening)]) and len(start) < len(opening):
                self._text = text
                return ""
            self._state = "reasoning" if start.startswith(opening) else "content"
            text = start.removeprefix(opening) if self._state == "reasoning" else text
        if self._state == "reasoning":
            text = text if self._reasoned else text.lstrip(BLANK)
            end = text.find(closing)
            shown = text[: end if end >= 0 else len(text) - overlap(text, closing)].rstrip(BLANK)
            if shown:
                self._reasoned = True
                deltas.append({"reasoning_content": shown})
            if end < 0:
                self._text = text[len(shown) :]
                return ""
            self._state, text = "after", text[end + len(closing) :]
        if self._state == "after" and (text := text.lstrip(BLANK)):
            self._state = "content"
        return text


def message(deltas: Iterable[Delta]) -> dict[str, Any]:
    """The whole message that the deltas of a stream make."""
    whole: dict[str, Any] = {"role": "assistant", "content": None}
    for delta in deltas:
        for field in ("content", "reasoning_content"):
            if field in delta:
                whole[field] = (whole.get(field) or "") + delta[field]
        for piece in delta.get("tool_calls", ()):
            calls = whole.setdefault("tool_calls", [])
            if piece["index"] == len(calls):
                calls.append({key: piece[key] for key in ("id", "type")} | {"function": dict(piece["function"])})
            else:
                calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    return whole


def forced_schema(tools: Sequence[Mapping[str, Any]], named: str | None = None) -> dict[str, Any]:
    """The JSON schema of an answer that has to call one of ``tools`` (OpenAI's form), or the ``named`` one."""
    functions = [tool["function"] for tool in tools if named in (None, tool["function"]["name"])]
    if not functions:
        raise InvalidRequest(f"tool_choice names {named!r}, which is not among tools", "tool_choice")
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": function["name"]},
                "arguments": function.get("parameters") or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for function in functions
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def _plain(message: Message, place: int) -> dict[str, Any]:
    """A message as templates expect it: content as one text, a call's arguments as an object."""
    plain = dict(message)
    content = plain.get("content")
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise InvalidRequest("only parts of type text can be read", f"messages[{place}].content")
        plain["content"] = "".join(part["text"] for part in content)
    elif content is None:
        plain["content"] = ""
    elif not isinstance(content, str):
        raise InvalidRequest("content has to be a text or a list of parts", f"messages[{place}].content")
    if calls := plain.get("tool_calls"):
        field = f"messages[{place}].tool_calls"
        if not isinstance(calls, list):
            raise InvalidRequest("tool_calls has to be a list of calls", field)
        plain["tool_calls"] = [_plain_call(call, field) for call in calls]
    return plain


def _plain_call(call: Any, field: str) -> dict[str, Any]:
    try:
        function = dict(call["function"])
        arguments = function.get("arguments") or "{}"
        function["arguments"] = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (LookupError, TypeError, ValueError) as error:
        raise InvalidRequest(f"{NEEDS}: {error}", field) from error
    if not isinstance(function.get("name"), str):
        raise InvalidRequest(NEEDS, field)
    return {**call, "function": function}


def _without_tools(messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For a template without tools: they are told in the system message, calls and results in plain messages."""
    said: list[dict[str, Any]] = []
    for message in messages:
        role, content = message.get("role"), message["content"]
        if calls := message.get("tool_calls"):
            functions = [{key: call["function"][key] for key in ("name", "arguments")} for call in calls]
            text = json.dumps(functions if len(functions) > 1 else functions[0], ensure_ascii=False)
            said.append({"role": role, "content": f"{content}\n{text}".strip()})
        elif role == "tool":
            text = f"Result of {message.get('name') or 'the function'}: {content}"
            if said and said[-1].get("results"):
                said[-1]["content"] += f"\n{text}"
            else:
                said.append({"role": "user", "content": text, "results": True})
        else:
            said.append(message)
    if not tools:
        return said
    listed = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    told = f"{PLAIN_JSON_HELP}\n{listed}"
    if said and said[0].get("role") == "system":
        return [{**said[0], "content": f"{said[0]['content']}\n\n{told}"}, *said[1:]]
    return [{"role": "system", "content": told}, *said]
