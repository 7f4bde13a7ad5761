"""A model's language without a model: one token a character, a chat template of one line."""

from __future__ import annotations

from typing import Any

import msgspec
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from engine.answers import Answer
from engine.dialogue import Dialogue
from engine.errors import InvalidRequest
from engine.events import Delta, Done, Timings, Usage
from engine.fields import Fields
from engine.protocol import Language, read_chat
from engine.request import Finish, Structure, TokenLogprobs
from engine.tokenizer import Tokenizer

CONTEXT = 400
TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if tools %}{{ tools }}<tool_call>{% endif %}</think>"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}


class Forms:
    """Takes all forms but the one that says ``bad``."""

    def compile(self, structure: Structure, field: str) -> object:
        if structure.text == "bad":
            raise InvalidRequest("not a form", field)
        return structure


def language(template: str = TEMPLATE) -> Language:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = tokenizers.Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(["<end>"])
    tokenizer = Tokenizer(core)
    return Language(tokenizer, Dialogue(template, {}), Forms(), tokenizer.size, CONTEXT, 8)


def fields(body: dict[str, Any]) -> Fields:
    return Fields.decode(msgspec.json.encode(body))


def chat(body: dict[str, Any], template: str = TEMPLATE) -> tuple[Answer, Language]:
    """The answer that is made to a chat's body."""
    spoken = language(template)
    return Answer(read_chat(fields({**HELLO, **body}), spoken), "small", spoken.tokenizer), spoken


def piece(spoken: Language, text: str, logprobs: bool = False) -> Delta:
    """A piece of an answer, one token a byte."""
    tokens = tuple(spoken.tokenizer.encode(text))
    told = tuple(TokenLogprobs(-0.5, ((token, -0.5), (token + 1, -2.0))) for token in tokens) if logprobs else ()
    return Delta(text, tokens, told)


def end(finish: Finish = Finish.STOP, prompt: int = 6, cached: int = 4, completion: int = 5) -> Done:
    return Done(finish, Usage(prompt, cached, completion), Timings(1.0, 20.0, 300.0, 2.0, 3, 1, 0))


def events(stream: bytes) -> list[Any]:
    """A stream's objects, and its end as it is."""
    datas = [one.removeprefix(b"data: ") for one in stream.split(b"\n\n") if one]
    return [data.decode() if data == b"[DONE]" else msgspec.json.decode(data) for data in datas]
