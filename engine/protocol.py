"""OpenAI's requests, read: what is asked of the engine, or what is wrong with the asking.

Fields that nobody knows are passed over, as clients expect; one whose absence would make the answer something else than
was asked for is refused by its name.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from engine.dialogue import AnswerParser, Dialogue, forced_schema
from engine.errors import ContextExceeded, InvalidRequest
from engine.fields import Fields
from engine.request import Sampling, Sequence, Structure
from engine.tokenizer import Tokenizer

MOST_CHOICES = 64
"""Answers to one request, over all of its prompts; ``MOST_INPUTS`` is the same for embeddings."""
MOST_INPUTS = 2048
MOST_STOPS = 64
MOST_TOOLS = 512
MOST_LOGPROBS = 20
MOST_TOKENS = 2**31
COMPLETION_TOKENS = 16
"""``max_tokens`` of a completion that says nothing of it, as in OpenAI's API; a chat's answer may fill the context."""
SEEDS = 2**63
ENFORCED_BY_TEMPLATE = frozenset(("messages", "tools", "documents", "add_generation_prompt", "self"))
REFUSED = ("functions", "function_call", "audio", "echo", "suffix", "prompt_embeds", "use_beam_search")


class Forms(Protocol):
    """What checks the form that an answer is to have."""

    def compile(self, structure: Structure, field: str) -> object:
        """Raises InvalidRequest naming the field when it is none."""


@dataclass(frozen=True, slots=True)
class Language:
    """How a model reads and writes; ``vocabulary`` and ``context`` are in tokens, ``hidden`` an embedding's length."""

    tokenizer: Tokenizer
    dialogue: Dialogue
    forms: Forms
    vocabulary: int
    context: int
    hidden: int


@dataclass(frozen=True, slots=True)
class Generation:
    """A request for answers: ``choices`` to each prompt. ``parser`` makes a chat's, for one answer."""

    prompts: tuple[list[int], ...]
    sampling: Sampling
    choices: int = 1
    priority: int = 0
    stream: bool = False
    include_usage: bool = False
    parser: Callable[[], AnswerParser] | None = None
    one_call: bool = False
    """The answer ends with its first tool call."""

    def sequences(self, number: Callable[[], int]) -> list[Sequence]:
        """One sequence a choice, those of a prompt side by side; ``number`` gives their ids."""
        seed = self.sampling.seed
        return [
            Sequence(
                number(),
                len(prompt),
                list(prompt),
                self.sampling,
                self.priority,
                seed=secrets.randbelow(SEEDS) if seed is None else (seed + choice) % SEEDS,
            )
            for prompt in self.prompts
            for choice in range(self.choices)
        ]


@dataclass(frozen=True, slots=True)
class Embedding:
    """A request for embeddings, one an input; ``base64`` is the form that they are to come in."""

    inputs: tuple[list[int], ...]
    priority: int = 0
    base64: bool = False

    def sequences(self, number: Callable[[], int]) -> list[Sequence]:
        """One sequence an input; ``number`` gives their ids."""
        sampling = Sampling(max_tokens=1)
        return [Sequence(number(), len(i), list(i), sampling, self.priority, pools=True) for i in self.inputs]


def read_chat(fields: Fields, language: Language) -> Generation:
    """The body of /v1/chat/completions. Raises ``InvalidRequest``, ``ContextExceeded``."""
    tools = _tools(fields)
    forced, named = _tool_choice(fields, tools)
    text = _chat_text(fields, language, tools)
    prompt = language.tokenizer.encode(text, special=False)
    _fits(prompt, language, "messages")
    logprobs = fields.number("top_logprobs", 0, 0, MOST_LOGPROBS) if fields.flag("logprobs") else None
    if logprobs is None and fields.raw("top_logprobs"):
        raise fields.wrong("top_logprobs", "used together with logprobs: true")
    limit = "max_completion_tokens" if fields.raw("max_completion_tokens") is not None else "max_tokens"
    structure, field = _structure(fields), "response_format"
    if forced:
        schema = msgspec.json.encode(forced_schema(tools, named)).decode()
        structure, field = Structure("json_schema", schema), "tools"
    sampling = _sampling(fields, language, limit, language.context - len(prompt), logprobs, structure, field)
    names = [tool["function"]["name"] for tool in tools]
    # An answer in a form has no place for reasoning, even where the template has opened it.
    seen = "" if structure else text
    return _generation(
        fields,
        (prompt,),
        sampling,
        lambda: language.dialogue.parser(seen, names, forced),
        one_call=not fields.flag("parallel_tool_calls", True),
    )


def read_completion(fields: Fields, language: Language) -> Generation:
    """The body of /v1/completions. Raises ``InvalidRequest``, ``ContextExceeded``."""
    prompts = _inputs(fields, "prompt", language, MOST_CHOICES)
    logprobs = None if fields.raw("logprobs") is None else fields.number("logprobs", 0, 0, MOST_LOGPROBS)
    structure = _structure(fields)
    sampling = _sampling(
        fields, language, "max_tokens", COMPLETION_TOKENS, logprobs, structure, field="response_format"
    )
    return _generation(fields, prompts, sampling)


def read_embedding(fields: Fields, language: Language) -> Embedding:
    """The body of /v1/embeddings. Raises ``InvalidRequest``, ``ContextExceeded``."""
    form = fields.text("encoding_format", "float")
    if form not in ("float", "base64"):
        raise fields.wrong("encoding_format", "'float' or 'base64'")
    if fields.number("dimensions", language.hidden, 1, MOST_TOKENS) != language.hidden:
        raise InvalidRequest(f"this model does not support other dimensions than {language.hidden}", "dimensions")
    return Embedding(_inputs(fields, "input", language, MOST_INPUTS), _priority(fields), form == "base64")


def read_text(fields: Fields, language: Language) -> list[int]:
    """The body of /tokenize: the tokens of ``messages`` as a chat reads them, or of ``prompt``."""
    if fields.raw("messages") is not None:
        return language.tokenizer.encode(_chat_text(fields, language, _tools(fields)), special=False)
    text = fields.text("prompt", fields.text("content"))
    if text is None:
        raise fields.wrong("prompt", "a text, where there are no messages")
    return language.tokenizer.encode(text, special=fields.flag("add_special_tokens", True))


def read_tokens(fields: Fields, language: Language) -> list[int]:
    """The body of /detokenize."""
    return _known(fields, "tokens", fields.items("tokens", int, "token ids", 16 * 1024 * 1024), language)


def _generation(
    fields: Fields,
    prompts: tuple[list[int], ...],
    sampling: Sampling,
    parser: Callable[[], AnswerParser] | None = None,
    one_call: bool = False,
) -> Generation:
    for name in REFUSED:
        if fields.raw(name):
            raise InvalidRequest(f"{name} is not supported", name)
    choices = fields.number("n", 1, 1, MOST_CHOICES)
    if fields.number("best_of", choices, 1, MOST_CHOICES) != choices:
        raise InvalidRequest("best_of is not supported, but as a number equal to n", "best_of")
    if choices * len(prompts) > MOST_CHOICES:
        raise fields.wrong("n", f"at most {MOST_CHOICES} over all prompts, of which there are {len(prompts)}")
    options = fields.inner("stream_options")
    return Generation(
        prompts,
        sampling,
        choices,
        _priority(fields),
        fields.flag("stream"),
        options.flag("include_usage") if options else False,
        parser,
        one_call,
    )


def _priority(fields: Fields) -> int:
    return fields.number("priority", 0, -1000, 1000)


def _sampling(
    fields: Fields,
    language: Language,
    limit: str,
    default_tokens: int,
    logprobs: int | None,
    structure: Structure | None,
    field: str,
) -> Sampling:
    if structure is not None:
        language.forms.compile(structure, field)
    stop = fields.raw("stop")
    stops = [stop] if isinstance(stop, str) else fields.items("stop", str, "texts", MOST_STOPS)
    ends = fields.items("stop_token_ids", int, "token ids", MOST_STOPS)
    top_k = fields.number("top_k", 0, -1, MOST_TOKENS)
    most = fields.number(limit, max(default_tokens, 1), 1, MOST_TOKENS)
    seed = None if fields.raw("seed") is None else fields.number("seed", 0, -SEEDS, 2 * SEEDS) % SEEDS
    return Sampling(
        max_tokens=most,
        temperature=fields.number("temperature", 1.0, 0.0, 100.0),
        top_k=max(top_k, 0),
        top_p=fields.number("top_p", 1.0, 0.0, 1.0),
        min_p=fields.number("min_p", 0.0, 0.0, 1.0),
        presence_penalty=fields.number("presence_penalty", 0.0, -2.0, 2.0),
        frequency_penalty=fields.number("frequency_penalty", 0.0, -2.0, 2.0),
        repetition_penalty=fields.number("repetition_penalty", 1.0, 0.01, 100.0),
        logit_bias=_bias(fields, language),
        seed=seed,
        stop=tuple(one for one in stops if one),
        stop_token_ids=tuple(_known(fields, "stop_token_ids", ends, language)),
        ignore_eos=fields.flag("ignore_eos"),
        min_tokens=fields.number("min_tokens", 0, 0, most),
        logprobs=logprobs,
        structure=structure,
    )


def _bias(fields: Fields, language: Language) -> tuple[tuple[int, float], ...]:
    given = fields.inner("logit_bias")
    if given is None:
        return ()
    try:
        ids = [int(name) for name in given.plain()]
    except ValueError as error:
        raise fields.wrong("logit_bias", "an object of token ids") from error
    _known(fields, "logit_bias", ids, language)
    return tuple(
        (number, given.number(name, 0.0, -100.0, 100.0)) for number, name in zip(ids, given.plain(), strict=True)
    )


def _known(fields: Fields, name: str, tokens: list[int], language: Language) -> list[int]:
    if any(not 0 <= token < language.vocabulary for token in tokens):
        raise fields.wrong(name, f"made of token ids from 0 to {language.vocabulary - 1}")
    return tokens


def _fits(prompt: list[int], language: Language, field: str, answer: int = 1) -> list[int]:
    if not prompt:
        raise InvalidRequest(f"{field} has to be more than nothing", field)
    if len(prompt) + answer > language.context:
        raise ContextExceeded(len(prompt), language.context, field)
    return prompt


def _inputs(fields: Fields, name: str, language: Language, most: int) -> tuple[list[int], ...]:
    """Prompts or inputs: one or several, each a text or a list of token ids."""
    value = fields.raw(name)
    if isinstance(value, str) or (isinstance(value, list) and value and isinstance(value[0], int)):
        value = [value]
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        raise fields.wrong(name, f"a text, a list of token ids, or a list of 1 to {most} of these")
    found = []
    for one in value:
        if isinstance(one, str):
            tokens = language.tokenizer.encode(one)
        elif isinstance(one, list) and all(type(token) is int for token in one):
            tokens = _known(fields, name, one, language)
        else:
            raise fields.wrong(name, "made of texts or of lists of token ids")
        found.append(_fits(tokens, language, name, answer=int(name == "prompt")))
    return tuple(found)


def _chat_text(fields: Fields, language: Language, tools: list[dict[str, Any]]) -> str:
    messages = fields.items("messages", dict, "messages, each an object", 100_000)
    if not messages:
        raise fields.wrong("messages", "a list of at least one message")
    for place, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise InvalidRequest(f"messages[{place}].role has to be a text", f"messages[{place}].role")
    more = fields.inner("chat_template_kwargs")
    arguments = more.plain() if more else {}
    if taken := ENFORCED_BY_TEMPLATE & set(arguments):
        raise InvalidRequest(f"{min(taken)} has a place of its own", "chat_template_kwargs")
    return language.dialogue.render(messages, tools or None, **arguments)


def _tools(fields: Fields) -> list[dict[str, Any]]:
    """The tools that may be called: none where ``tool_choice`` is "none"."""
    tools = fields.items("tools", dict, "tools, each an object", MOST_TOOLS)
    for place, tool in enumerate(tools):
        function = tool.get("function")
        if tool.get("type", "function") != "function":
            raise InvalidRequest("only tools of type function are supported", f"tools[{place}].type")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequest("a tool needs a function with a name", f"tools[{place}].function")
        if not isinstance(function.get("parameters") or {}, dict):
            raise InvalidRequest("parameters has to be a JSON schema", f"tools[{place}].function.parameters")
    return [] if fields.raw("tool_choice") == "none" else tools


def _tool_choice(fields: Fields, tools: list[dict[str, Any]]) -> tuple[bool, str | None]:
    """Whether the answer has to be a call, and of which function if it is said."""
    choice = fields.raw("tool_choice")
    if choice in (None, "auto", "none"):
        return False, None
    if not tools:
        raise fields.wrong("tool_choice", "used together with tools")
    if choice == "required":
        return True, None
    function = choice.get("function") if isinstance(choice, Mapping) else None
    if isinstance(function, Mapping) and isinstance(function.get("name"), str):
        return True, function["name"]
    raise fields.wrong("tool_choice", '"auto", "none", "required", or an object that names a function')


def _structure(fields: Fields) -> Structure | None:
    """The form that ``response_format`` asks for; beside OpenAI's kinds there are ``regex`` and ``grammar``."""
    wanted = fields.inner("response_format")
    if wanted is None:
        return None
    match kind := wanted.text("type"):
        case "text":
            return None
        case "regex" | "grammar":
            text = wanted.text(kind)
            if not text:
                raise wanted.wrong(kind, "a text")
            return Structure("regex" if kind == "regex" else "grammar", text)
        case "json_object" if wanted.raw("schema") is None:
            return Structure("json_object")
        case "json_object" | "json_schema":
            described = wanted.inner("json_schema") if kind == "json_schema" else wanted
            schema = described.raw("schema") if described else None
            if not isinstance(schema, dict):
                raise wanted.wrong("json_schema", "an object with a schema")
            return Structure("json_schema", msgspec.json.encode(schema).decode())
    raise wanted.wrong("type", "'text', 'json_object', 'json_schema', 'regex' or 'grammar'")
