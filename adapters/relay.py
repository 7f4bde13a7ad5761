"""Turns an OpenAI-speaking engine's event stream into the one that the client gets, and watches it pass.

Events are forwarded as bytes. Only those that carry one of a few marks (usage, timings, an error, a finish reason,
prompt progress) are parsed, and those up to the first token; in JSON a quote inside of a text is escaped, so no text
can look like a mark.

When an answer is whole: the engine has said ``[DONE]``, or has ended its stream properly after a finish reason for
every choice (some engines leave ``[DONE]`` out; the client gets it all the same). Any other end is an interruption.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from adapters.base import Outcome
from adapters.errors import Broken, EngineError, Interrupted
from adapters.heard import NOT_JSON
from adapters.openai_errors import error_from_event
from adapters.sse import EventSplitter, event_data, event_field, split_events
from adapters.usage import id_of, read_progress, read_timings, read_usage

DONE: Final = b"data: [DONE]\n\n"

_MODEL: Final = re.compile(rb'"model":(\s*)"(?:[^"\\]|\\.)*"')
_OUTPUT: Final = re.compile(
    rb'"(?:content|reasoning_content|reasoning|text|arguments|refusal)"\s*:\s*"[^"]'
    rb'|"(?:tool_calls|function_call)"\s*:\s*[\[{]\s*[{"]'
)
"""Matches an event that carries output: never the one that only names the role, nor one that only finishes."""

_MARKS: Final = (b"data: [DONE]", b'"timings":', b'"error":', b'"prompt_progress":')

_KEEPALIVE: Final = re.compile(rb"keepalive (\d+)/(\d+)")
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode
_decode_raw: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@dataclass(frozen=True, slots=True)
class StreamQuirks:
    """How an engine's stream differs from OpenAI's own, as data."""

    usage_per_choice: bool = False
    """With several choices it sends a usage for each, which counts only that choice's output."""


class Relay:
    """One stream on its way to the client: bytes in, bytes out; fills ``outcome`` as it passes.

    ``model`` is the name that the client gets to see; ``clock`` gives the seconds of the outcome's times; ``choices``
    is the number of answers asked for. What it raises is an EngineError; before anything was given to the client it is
    the one that the engine meant, afterwards Interrupted.
    """

    __slots__ = (
        "_choices",
        "_clock",
        "_finished",
        "_include_usage",
        "_marks",
        "_model",
        "_model_json",
        "_needle",
        "_outcome",
        "_quirks",
        "_replacement",
        "_secret",
        "_splitter",
        "_usages",
        "done",
        "emitted",
        "failure",
    )

    def __init__(
        self,
        model: str,
        outcome: Outcome,
        clock: Callable[[], float],
        *,
        include_usage: bool,
        choices: int = 1,
        quirks: StreamQuirks | None = None,
        secret: str = "",
    ) -> None:
        self.done = False
        """``[DONE]`` has passed."""
        self.emitted = False
        """Something was given to the client."""
        self.failure: EngineError | None = None
        """What went wrong behind the events that were returned last: ``feed`` or ``end`` raises it next."""
        self._model = model
        self._model_json = msgspec.json.encode(model)
        self._outcome = outcome
        self._clock = clock
        self._include_usage = include_usage
        self._choices = choices
        self._finished: set[str] = set()
        self._quirks = quirks or StreamQuirks()
        self._secret = secret
        self._splitter = EventSplitter()
        self._usages: list[dict[str, Any]] = []
        self._needle = self._replacement = b""
        self._marks: tuple[bytes, ...] = ()

    def feed(self, data: bytes) -> bytes:
        """Return what of ``data`` the client gets now, whole events only; ``b""`` when nothing of it is for it."""
        blob = self._splitter.feed(data)
        if not blob:
            return blob
        if self._outcome.first_token_at is not None and self._plain_until(blob, 0) == len(blob):
            return self._pass_plain(blob)
        return self._pass_each(blob)

    def end(self) -> bytes:
        """Say that the engine ended its stream properly; return the rest. Raises when the answer is not whole."""
        rest = self._pass_each(self._splitter.end())
        if self.done:
            return rest
        if len(self._finished) < self._choices:
            raise self._fail("it ended the stream before the answer was complete")
        return rest + self._finish()

    # Events that need no look

    def _plain_until(self, blob: bytes, start: int) -> int:
        """Where the events from ``start`` on end that name the model and carry no mark; ``start`` when none is so."""
        end = len(blob)
        for mark in self._marks:
            found = blob.find(mark, start, end)
            end = end if found < 0 else found
        if end < len(blob):
            cut = blob.rfind(b"\n\n", start, end)
            end = start if cut < 0 else cut + 2
        return end if blob.count(self._needle, start, end) == blob.count(b"\n\n", start, end) else start

    def _pass_plain(self, blob: bytes) -> bytes:
        outcome = self._outcome
        outcome.output_chunks += blob.count(b"\n\n")
        outcome.last_token_at = self._clock()
        return blob.replace(self._needle, self._replacement)

    # Event by event

    def _pass_each(self, blob: bytes) -> bytes:
        """Look at the events up to the first token, and from the first one with a mark on."""
        out = []
        start = 0
        try:
            if self.failure is not None:
                raise self.failure
            while self._outcome.first_token_at is None and start < len(blob):
                cut = blob.index(b"\n\n", start) + 2
                out.append(self._pass(blob[start:cut]))
                start = cut
            plain = self._plain_until(blob, start)
            if plain > start:
                out.append(self._pass_plain(blob[start:plain]))
            for event in split_events(blob[plain:]):
                out.append(self._pass(event))
        except EngineError as error:
            if not (self.emitted and any(out)):
                raise
            self.failure = error
            self._needle = b""  # whatever follows is looked at, and raises it
        passed = b"".join(out)
        if passed:
            self.emitted = True
        return passed

    def _pass(self, event: bytes) -> bytes:
        data = event_data(event)
        if self.done:
            return b""
        if data is None:
            return self._pass_dataless(event)
        if data == b"[DONE]":
            return self._finish()
        try:
            chunk = _decode(data)
        except NOT_JSON:
            raise self._fail("it sent an event that is not a JSON object") from None
        if chunk.get("error"):
            raise self._failed(error_from_event(chunk["error"], secret=self._secret))
        if not self._outcome.response_id:
            self._outcome.response_id = id_of(chunk.get("id"))
        output = _OUTPUT.search(event) is not None
        if "prompt_progress" in chunk and not output:
            read_progress(chunk["prompt_progress"], self._outcome)
            return b""
        if output:
            self._count_output()
        self._note_finish(chunk)
        read_timings(chunk.get("timings"), self._outcome)
        if event.count(b"\n") > 2 or not event.startswith(b"data:"):
            event = b"data: " + data.replace(b"\n", b" ") + b"\n\n"  # one line, so that bytes can be replaced in it
        if chunk.get("usage"):
            event = self._take_usage(chunk, event)
        return self._rename(chunk, event) if event else event

    def _pass_dataless(self, event: bytes) -> bytes:
        """Comments are ours to make: the engine's only say that it lives, and perhaps how far it has read."""
        if error := event_field(event, b"error"):  # older llama.cpp
            raise self._failed(error_from_event(error.decode(errors="replace"), secret=self._secret))
        if found := _KEEPALIVE.search(event):
            self._outcome.prefill_done, self._outcome.prefill_all = int(found[1]), int(found[2])
        return b""

    def _count_output(self) -> None:
        outcome = self._outcome
        outcome.output_chunks += 1
        outcome.last_token_at = self._clock()
        if outcome.first_token_at is None:
            outcome.first_token_at = outcome.last_token_at

    def _note_finish(self, chunk: dict[str, Any]) -> None:
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and (reason := choice.get("finish_reason")):
                self._finished.add(str(choice.get("index", 0)))
                self._outcome.finish_reason = str(reason)

    def _take_usage(self, chunk: dict[str, Any], event: bytes) -> bytes:
        """Learn the usage; hold it back until the end where it stands alone or counts one choice of several."""
        per_choice = self._quirks.usage_per_choice
        read_usage(chunk["usage"], self._outcome, add=per_choice and bool(self._usages))
        alone = not chunk.get("choices")
        if alone:
            self._usages.append(chunk)
            return b""
        if per_choice:
            self._usages.append({name: value for name, value in chunk.items() if name != "timings"})
        if per_choice or not self._include_usage:
            fields = _decode_raw(event_data(event) or b"")
            del fields["usage"]
            return b"data: " + msgspec.json.encode(fields) + b"\n\n"
        return event

    def _rename(self, chunk: dict[str, Any], event: bytes) -> bytes:
        engine_model = chunk.get("model")
        if not isinstance(engine_model, str):
            return event
        if (self._needle and self._needle in event) or self._learn_needle(engine_model, event):
            return event.replace(self._needle, self._replacement)
        fields = {**_decode_raw(event_data(event) or b""), "model": self._model}
        return b"data: " + msgspec.json.encode(fields) + b"\n\n"

    def _learn_needle(self, engine_model: str, event: bytes) -> bool:
        """Find the exact bytes that name the model. They tell how this engine spaces its JSON, too."""
        for found in _MODEL.finditer(event):
            name = found[0][8 + len(found[1]) :]
            if msgspec.json.decode(name) == engine_model:
                space = found[1]
                self._needle = found[0]
                self._replacement = b'"model":' + space + self._model_json
                self._marks = (b'"finish_reason":' + space + b'"', b'"usage":' + space + b"{", *_MARKS)
                return True
        return False

    def _finish(self) -> bytes:
        self.done = self._outcome.whole = self.emitted = True
        self._needle = b""  # whatever follows is looked at, and dropped
        if not self._usages or not self._include_usage:
            return DONE
        last = {**self._usages[-1], "choices": [], "model": self._model}
        if len(self._usages) > 1:
            prompt, output = self._outcome.prompt_tokens or 0, self._outcome.output_tokens or 0
            last["usage"] = {**last["usage"], "completion_tokens": output, "total_tokens": prompt + output}
        return b"data: " + msgspec.json.encode(last) + b"\n\n" + DONE

    # Ends that are none

    def _fail(self, message: str) -> EngineError:
        return Interrupted(message) if self.emitted else Broken(message)

    def _failed(self, error: EngineError) -> EngineError:
        return Interrupted(f"it failed in the middle of its answer: {error.message}") if self.emitted else error
