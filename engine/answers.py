"""What the engine tells of a request, in the form of OpenAI's answers: one body, or the events of a stream."""

from __future__ import annotations

import base64
import math
import time
import uuid
from array import array
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from engine.dialogue import AnswerParser, message
from engine.errors import ContextExceeded, EngineError, InvalidRequest
from engine.events import Delta, Done
from engine.protocol import Embedding, Generation
from engine.request import Finish, TokenLogprobs

JSON = dict[str, Any]
encode = msgspec.json.encode
DONE = b"data: [DONE]\n\n"


class Spelling(Protocol):
    """What of a tokenizer is needed to show tokens; ``hidden`` ones are not shown."""

    hidden: frozenset[int]

    def token_bytes(self, number: int) -> bytes:
        """The bytes that a token adds to a text."""


def event(value: JSON) -> bytes:
    """One event of a stream."""
    return b"data: " + encode(value) + b"\n\n"


def error_body(error: EngineError) -> JSON:
    """An error in OpenAI's form; both lengths beside it where they are what is wrong."""
    field = error.field if isinstance(error, InvalidRequest) else None
    said: JSON = {"message": error.message, "type": error.kind, "param": field, "code": error.code}
    if isinstance(error, ContextExceeded):
        said |= {"n_prompt_tokens": error.prompt_tokens, "n_ctx": error.context}
    return {"error": said}


class _Choice:
    """One answer on its way."""

    def __init__(self, index: int, parser: AnswerParser | None) -> None:
        self.index = index
        self.parser = parser
        self.done: Done | None = None
        self.pieces: list[JSON] = []
        self.text: list[str] = []
        self.logprobs: list[JSON] = []
        self.length = 0
        self.closed = False
        """No more of it is shown: the one tool call that it may make is made."""

    def read(self, text: str, ends: bool, one_call: bool) -> list[JSON]:
        """A chat's deltas out of a piece of text."""
        assert self.parser is not None
        deltas = self.parser.feed(text) + (self.parser.finish() if ends else [])
        if one_call and self.parser.calls > 1:
            kept = [delta for delta in deltas if all(not call["index"] for call in delta.get("tool_calls", ()))]
            self.closed = True
            return kept
        return deltas

    @property
    def finish(self) -> str | None:
        """Its ``finish_reason``."""
        if self.done is None:
            return None
        calls = self.parser.calls if self.parser else 0
        return "tool_calls" if calls and self.done.finish is not Finish.LENGTH else self.done.finish.value


class Answer:
    """An answer to one request for generation: ``take`` gets its events in order, numbered by their choice.

    Of a stream ``take`` returns the bytes to send, of any other ``body`` all of it. ``closed`` choices need not go on.
    """

    def __init__(self, asked: Generation, model: str, spelling: Spelling) -> None:
        self._asked = asked
        self._spelling = spelling
        self._chat = asked.parser is not None
        make: Callable[[], AnswerParser | None] = asked.parser or (lambda: None)
        self._choices = [_Choice(index, make()) for index in range(asked.choices * len(asked.prompts))]
        kind = ("chat.completion" + ".chunk" * asked.stream) if self._chat else "text_completion"
        self._head: JSON = {
            "id": ("chatcmpl-" if self._chat else "cmpl-") + uuid.uuid4().hex,
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }
        self._left = len(self._choices)

    @property
    def whole(self) -> bool:
        """All choices have ended."""
        return not self._left

    def begin(self) -> bytes:
        """A stream's first events: in a chat they tell whose words follow."""
        if not self._chat:
            return b""
        return b"".join(self._chunk(one, {"role": "assistant", "content": ""}) for one in self._choices)

    def take(self, index: int, told: Delta | Done) -> bytes:
        """What a piece of an answer, or its end, adds to the stream; nothing where none was asked for."""
        choice = self._choices[index]
        text, logprobs, ends = "", None, isinstance(told, Done)
        if isinstance(told, Done):
            choice.done = told
            self._left -= 1
        else:
            text, logprobs = told.text, self._logprobs(choice, told) if told.logprobs else None
        deltas: list[JSON] = []
        if choice.closed:
            pass
        elif self._chat:
            deltas = choice.read(text, ends, self._asked.one_call)
            choice.pieces += deltas
        elif text:
            deltas = [{"text": text}]
            choice.text.append(text)
        if not self._asked.stream:
            return b""
        if logprobs and not deltas:
            deltas = [{"content": ""} if self._chat else {"text": ""}]
        out = [self._chunk(choice, delta, None if place else logprobs) for place, delta in enumerate(deltas)]
        if ends:
            out.append(self._chunk(choice, {} if self._chat else {"text": ""}, last=True))
        if self.whole:
            if self._asked.include_usage:
                out.append(event({**self._head, "choices": [], "usage": self._usage()}))
            out.append(DONE)
        return b"".join(out)

    def closed(self, index: int) -> bool:
        """Nothing more of this choice is shown, so it may be ended."""
        return self._choices[index].closed

    def body(self) -> bytes:
        """The whole answer."""
        choices = []
        for choice in self._choices:
            said: JSON = {"index": choice.index}
            if self._chat:
                said["message"] = message(choice.pieces)
                if said["message"]["content"] is None and not said["message"].get("tool_calls"):
                    said["message"]["content"] = ""
            else:
                said["text"] = "".join(choice.text)
            said["logprobs"] = self._joined(choice.logprobs) if self._asked.sampling.logprobs is not None else None
            choices.append({**said, "finish_reason": choice.finish})
        return encode({**self._head, "choices": choices, "usage": self._usage(), "timings": self._timings()})

    def _chunk(self, choice: _Choice, piece: JSON, logprobs: list[JSON] | None = None, last: bool = False) -> bytes:
        said: JSON = {"index": choice.index, **({"delta": piece} if self._chat else piece)}
        said["logprobs"] = self._joined(logprobs) if logprobs else None
        said["finish_reason"] = choice.finish if last else None
        chunk = {**self._head, "choices": [said]}
        return event({**chunk, "timings": self._timings()} if last and self.whole else chunk)

    def _usage(self) -> JSON:
        done = [choice.done for choice in self._choices if choice.done is not None]
        firsts = done[:: self._asked.choices]
        completion = sum(one.usage.completion for one in done)
        return usage(sum(one.usage.prompt for one in firsts), completion, sum(one.usage.cached for one in firsts))

    def _timings(self) -> JSON:
        """Those of the choice that took longest."""
        done = [choice.done for choice in self._choices if choice.done is not None]
        longest = max(done, key=lambda one: one.timings.prefill_ms + one.timings.decode_ms)
        return timings(longest)

    def _logprobs(self, choice: _Choice, told: Delta) -> list[JSON]:
        """An entry for each token that is text, in the chat's form or, with offsets, the completions'."""
        entries = []
        for token, logprobs in zip(told.tokens, told.logprobs, strict=True):
            if token in self._spelling.hidden:
                continue
            entry = self._spell(token, logprobs.chosen)
            entry["top_logprobs"] = [self._spell(*one) for one in self._best(token, logprobs)]
            entry["offset"] = choice.length
            choice.length += len(entry["token"])
            entries.append(entry)
        choice.logprobs += entries
        return entries

    def _best(self, token: int, logprobs: TokenLogprobs) -> Iterable[tuple[int, float]]:
        best = logprobs.best[: self._asked.sampling.logprobs]
        return best if self._chat or token in dict(best) or not best else (*best, (token, logprobs.chosen))

    def _spell(self, token: int, logprob: float) -> JSON:
        spelt = self._spelling.token_bytes(token)
        return {"token": spelt.decode(errors="replace"), "logprob": max(logprob, -9999.0), "bytes": list(spelt)}

    def _joined(self, entries: list[JSON]) -> JSON:
        if self._chat:
            return {"content": [{key: entry[key] for key in entry if key != "offset"} for entry in entries]}
        return {
            "tokens": [entry["token"] for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": [{one["token"]: one["logprob"] for one in entry["top_logprobs"]} for entry in entries],
            "text_offset": [entry["offset"] for entry in entries],
        }


def embeddings(asked: Embedding, model: str, told: list[Done]) -> bytes:
    """The whole answer to a request for embeddings, each of length 1; ``told`` in the order of its inputs."""
    data = []
    for index, one in enumerate(told):
        values = _unit(one.embedding or ())
        form = base64.b64encode(array("f", values).tobytes()).decode() if asked.base64 else values
        data.append({"object": "embedding", "index": index, "embedding": form})
    prompt = sum(one.usage.prompt for one in told)
    used = {"prompt_tokens": prompt, "total_tokens": prompt}
    slowest = max(told, key=lambda one: one.timings.prefill_ms)
    return encode({"object": "list", "data": data, "model": model, "usage": used, "timings": timings(slowest)})


def _unit(values: tuple[float, ...]) -> tuple[float, ...]:
    length = math.hypot(*values)
    return tuple(value / length for value in values) if length else values


def usage(prompt: int, completion: int, cached: int) -> JSON:
    """Tokens, in OpenAI's form."""
    details = {"cached_tokens": cached}
    total = prompt + completion
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": total,
        "prompt_tokens_details": details,
    }


def timings(done: Done) -> JSON:
    """Where the time of one answer went: milliseconds, and what shaped them."""
    times = done.timings
    return {
        "queue_ms": round(times.queue_ms, 3),
        "prefill_ms": round(times.prefill_ms, 3),
        "decode_ms": round(times.decode_ms, 3),
        "cached_tokens": done.usage.cached,
        "batch_size": round(times.batch, 2),
        "drafted_tokens": times.drafted,
        "accepted_tokens": times.accepted,
        "preemptions": times.preemptions,
    }
