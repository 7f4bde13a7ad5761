"""Whatever an engine answers, in whichever place: it is read, or it is the engine's error; what is noted is sane."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from engines import ollama_shapes, shapes
from engines.answers import call
from engines.recorded import exchange_of
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.base import Adapter, Call, Endpoint, EngineLoad, ModelDescription, Outcome
from adapters.errors import EngineError
from adapters.join import Misshapen
from adapters.registry import create
from gateway.experiments.form import fault_of
from gateway.replay import joined, parted, without_usage
from gateway.telemetry.content import Content, Patterns
from gateway.telemetry.span import Kind, Span
from measure.output import streamed_text
from policies.types import Operation
from tests.unit.odd import odd_bodies

MODEL = "m"
CHAT = call({"messages": [{"role": "user", "content": "hi"}]})
MESSAGES: list[Any] = [
    {"role": "user", "content": [{"type": "text", "text": "a"}]},
    {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]},
]


class Heard:
    """An answer that has come whole: what ``adapters.response.Response`` gives of one."""

    def __init__(self, status: int, body: bytes, content_type: str) -> None:
        self.status = status
        self.headers = {"content-type": content_type}
        self.read_timeout_s = self.connected_at = 0.0
        self._body = body

    async def read_some(self) -> bytes:
        body, self._body = self._body, b""
        return body

    async def read(self, _limit: int = 0) -> bytes:
        return await self.read_some()

    def close(self) -> None: ...
    def finish(self) -> None: ...


class Answering:
    """Stands for the transport: gives each path its answer at once, 404 where it has none."""

    def __init__(self, routes: Mapping[str, tuple[int, bytes]], content_type: str = "application/json") -> None:
        self._routes = routes
        self._content_type = content_type

    async def request(self, method: str, path: str, **_: object) -> Heard:
        status, body = self._routes.get(f"{method} {path}", (404, b'{"error": {"message": "File Not Found"}}'))
        return Heard(status, body, self._content_type)


def listening(kind: str, routes: Mapping[str, tuple[int, bytes]], content_type: str = "application/json") -> Adapter:
    """An adapter of that kind whose engine answers so."""
    adapter = create(kind, Endpoint(name="engine", url="http://127.0.0.1:9"))
    vars(adapter)["_transport"] = Answering(routes, content_type)
    return adapter


def told(kind: str) -> dict[str, Any]:
    """What an engine of that kind answers: path → JSON, or the bytes of another text."""
    if kind == "ollama":
        return dict(ollama_shapes.describe(MODEL))
    own: dict[str, Any] = {
        "llamacpp": {
            "GET /metrics": b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n",
            "POST /apply-template": {"prompt": "<user>hi"},
            "POST /tokenize": {"tokens": [1, 2]},
        },
        "vllm": {"POST /tokenize": {"count": 2, "tokens": [1, 2]}},
        "builtin": {"POST /tokenize": {"count": 2}},
        "sglang": {"GET /get_server_info": {"model_path": "/m", "tp_size": 1, "version": "1", "dtype": "bfloat16"}},
        "tgi": {"GET /info": {"model_id": "m", "model_dtype": "float16", "max_total_tokens": 4096, "version": "3"}},
        "koboldcpp": {"GET /api/extra/true_max_context_length": {"value": 4096}},
        "llamafile": {"GET /props": {"default_generation_settings": {"n_ctx": 8192}, "model_ftype": "Q8_0"}},
    }.get(kind, {})
    return shapes.describe(kind, MODEL) | own


def encoded(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


ODD_NUMBERS = st.sampled_from(["+Inf", "-Inf", "NaN", "1e400", "-3", "x", "", "9" * 400, "0x1", "1_0", "²"])


@st.composite
def odd_texts(draw: st.DrawFn, text: bytes) -> bytes:
    """A text of gauges with another number in one line."""
    lines = text.decode().splitlines()
    at = draw(st.integers(0, len(lines) - 1))
    lines[at] = lines[at].rpartition(" ")[0] + " " + draw(ODD_NUMBERS)
    return "\n".join(lines).encode()


@pytest.mark.parametrize(
    "kind",
    ["builtin", "llamacpp", "vllm", "ollama", "lmstudio", "openai", "sglang", "tgi", "koboldcpp", "llamafile"],
)
@settings(max_examples=150)
@given(data=st.data())
def test_what_an_engine_says_of_itself_is_understood_or_is_its_own_error(kind: str, data: st.DataObject) -> None:
    answers = told(kind)
    routes = {path: (200, encoded(value)) for path, value in answers.items()}
    path = data.draw(st.sampled_from([path for path, value in answers.items() if value]))
    odd = odd_texts(answers[path]) if isinstance(answers[path], bytes) else odd_bodies(answers[path])
    routes[path] = data.draw(st.sampled_from([200, 200, 200, 400, 503])), data.draw(odd)
    adapter = listening(kind, routes)

    async def ask() -> None:
        for question in (adapter.describe, adapter.load, adapter.totals, lambda: adapter.count_tokens(CHAT)):
            try:
                said = await question()
            except EngineError:
                continue
            for model in said.models if hasattr(said, "models") else ():
                assert_sane_model(model)
            if isinstance(said, EngineLoad):
                assert_sane_load(said)
            if isinstance(said, int):
                assert said >= 0

    asyncio.run(ask())


def assert_sane_model(model: ModelDescription) -> None:
    assert isinstance(model.engine_model, str)
    assert model.engine_model
    for size in (model.context, model.slots):
        assert size is None or (type(size) is int and size > 0)
    assert type(model.cache_block) is int
    assert model.cache_block >= 0
    hash(model)


def assert_sane_load(load: EngineLoad) -> None:
    for count in (load.running, load.waiting):
        assert count is None or (type(count) is int and count >= 0)
    assert load.kv_usage is None or 0 <= load.kv_usage < math.inf


KINDS_OF_STREAM = {
    "builtin": "/v1/chat/completions",
    "llamacpp": "/v1/chat/completions",
    "ollama": "/api/chat",
}


class Asked:
    def __init__(self, path: str, body: dict[str, Any]) -> None:
        self.path = path
        self.json = body


def stream_of(kind: str) -> list[Any]:
    """The events of an answer with reasoning, a tool call, log probabilities, usage and timings, as JSON."""
    if kind == "ollama":
        told = [json.loads(line) for line in exchange_of("ollama/0.32/tool_call_stream")["lines"] if line != "..."]
        return [exchange_of("ollama/0.32/chat_logprobs")["json"] | {"done": False}, *told]
    piece = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    tokens: list[Any] = ["a", {"reasoning_content": "b"}, {"tool_calls": [piece]}]
    request = Asked(KINDS_OF_STREAM[kind], {"stream": True, "stream_options": {"include_usage": True}})
    answer = shapes.Answer(kind, MODEL, request, tokens, "stop")
    answer.cached_tokens = 3
    return [
        json.loads(event.removeprefix(b"data: "))
        for event in [*answer.progress([(1, 5)]), *answer.events(done=False)]
        if event.startswith(b"data: ")
    ]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "joined"])
@pytest.mark.parametrize("kind", KINDS_OF_STREAM)
@settings(max_examples=200)
@given(data=st.data())
def test_an_event_with_anything_in_one_place_is_passed_on_or_is_the_engines_error(
    kind: str, stream: bool, data: st.DataObject
) -> None:
    said = stream_of(kind)
    at = data.draw(st.integers(0, len(said) - 1))
    events = [encoded(event) for event in said]
    events[at] = data.draw(odd_bodies(said[at]))
    if kind == "ollama":
        body, content_type = b"\n".join([*events, b""]), "application/x-ndjson"
    else:
        body = b"".join(b"data: " + event + b"\n\n" for event in [*events, b"[DONE]"])
        content_type = "text/event-stream"
    adapter = listening(kind, {f"POST {KINDS_OF_STREAM[kind]}": (200, body)}, content_type)
    read_answer(adapter, call({"messages": [{"role": "user", "content": "hi"}]}, stream=stream, include_usage=True))


def read_answer(adapter: Adapter, asked: Call) -> None:
    async def read() -> Outcome | None:
        try:
            answer = await adapter.send(asked)
            given = await answer.read_all()
        except EngineError:
            return None
        if not answer.streamed:
            assert isinstance(json.loads(given), dict)
        return answer.outcome

    outcome = asyncio.run(read())
    if outcome is None:
        return
    for count in (outcome.prompt_tokens, outcome.output_tokens, outcome.cached_tokens):
        assert count is None or (type(count) is int and count >= 0)
    for seconds in (outcome.queue_s, outcome.load_s, outcome.prefill_s, outcome.decode_s):
        assert seconds is None or (type(seconds) is float and 0 <= seconds < math.inf)
    assert outcome.finish_reason is None or isinstance(outcome.finish_reason, str)


WHOLE: dict[tuple[str, Operation], dict[str, Any]] = {
    ("builtin", Operation.CHAT): {
        "id": "1",
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a"}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}},
        "timings": {"queue_ms": 1.0, "prefill_ms": 2.0, "decode_ms": 3.0, "cache_n": 1, "prompt_n": 2},
    },
    ("builtin", Operation.EMBEDDINGS): {
        "data": [{"index": 0, "embedding": [0.5]}],
        "model": "m",
        "usage": {"prompt_tokens": 3},
    },
    ("ollama", Operation.EMBEDDINGS): {"embeddings": [[0.5]], "prompt_eval_count": 3, "load_duration": 10**9},
}
PATHS = {Operation.CHAT: "/v1/chat/completions", Operation.EMBEDDINGS: "/v1/embeddings"}


@pytest.mark.parametrize(("kind", "operation"), WHOLE)
@settings(max_examples=200)
@given(data=st.data())
def test_a_body_with_anything_in_one_place_is_passed_on_or_is_the_engines_error(
    kind: str, operation: Operation, data: st.DataObject
) -> None:
    path = "/api/embed" if kind == "ollama" else PATHS[operation]
    adapter = listening(kind, {f"POST {path}": (200, data.draw(odd_bodies(WHOLE[kind, operation])))})
    asked = {"input": ["a"], "encoding_format": data.draw(st.sampled_from(["float", "base64"]))}
    if operation is Operation.CHAT:
        asked = {"messages": []}
    read_answer(adapter, call(asked, operation=operation, stream=False))


REFUSALS: list[Any] = [
    {"error": {"message": "context length is 8 tokens, but 9 input tokens", "type": "t", "code": 400, "param": "p"}},
    {"error": {"message": "m", "n_prompt_tokens": 9, "n_ctx": 8, "type": "exceed_context_size_error", "code": "x"}},
    {"detail": [{"loc": ["body", "n"], "msg": "m"}]},
    {"error": '{"error": {"message": "inner"}}'},
]


@pytest.mark.parametrize("kind", ["vllm", "ollama"])
@settings(max_examples=200)
@given(data=st.data())
def test_a_refusal_with_anything_in_one_place_is_an_error_with_words(kind: str, data: st.DataObject) -> None:
    said = data.draw(odd_bodies(data.draw(st.sampled_from(REFUSALS))))
    status = data.draw(st.sampled_from([200, 400, 404, 422, 500, 503]))
    path = "/api/chat" if kind == "ollama" else "/v1/chat/completions"
    read_answer(listening(kind, {f"POST {path}": (status, said)}), call({"messages": []}))


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@settings(max_examples=200)
@given(data=st.data())
def test_whoever_reads_an_answer_afterwards_reads_it_or_says_that_it_cannot(
    streamed: bool, data: st.DataObject
) -> None:
    if streamed:
        said = stream_of("llamacpp")
        at = data.draw(st.integers(0, len(said) - 1))
        odd = [encoded(event) for event in said]
        odd[at] = data.draw(odd_bodies(said[at]))
        answer = b"".join(b"data: " + event + b"\n\n" for event in [*odd, b"[DONE]"])
    else:
        answer = data.draw(odd_bodies(WHOLE["builtin", Operation.CHAT]))
    fault = fault_of(Operation.CHAT, CHAT.body, answer)
    assert fault is None or isinstance(fault, str)
    recorded = [Span("chat", "t", "c", "s", 0, 1, Kind.CLIENT)]
    content = Content(Operation.CHAT, data.draw(odd_bodies(MESSAGES)), answer, Patterns([]), 100, streamed=streamed)
    content.write(recorded)
    assert isinstance(json.loads(str(recorded[0].attributes["gen_ai.input.messages"])), list)
    assert isinstance(streamed_text(answer), str)
    without_usage(answer)
    with suppress(Misshapen):
        (joined if streamed else parted)(answer, Operation.CHAT)
