"""What every adapter's answers are, whatever the engine: streamed and whole, for each operation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from engines.subject import ASKED_NAME, Subject, text_of

from policies.types import Capability, Operation

HELLO = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 12, "temperature": 0, "seed": 7}
SKY = {"prompt": "The sky is", "max_tokens": 6, "temperature": 0, "seed": 7}
BOTH = [(Operation.CHAT, HELLO), (Operation.COMPLETION, SKY)]


async def need(subject: Subject, *capabilities: Capability) -> None:
    """Leave out what the engine says that it cannot do."""
    for capability in capabilities:
        if not await subject.can(capability):
            pytest.skip(f"this engine does not say that it can do {capability}")


async def test_it_describes_itself(subject: Subject) -> None:
    model = await subject.model()
    description = subject.description
    assert description is not None
    assert description.kind == subject.adapter.kind
    assert description.label
    assert model.precision_from in ("engine", "model folder", "configuration", "nobody")
    assert model.capabilities
    if subject.real and description.kind != "mlx":
        assert description.version
        assert model.context is not None
        assert model.context >= 512
        assert model.precision.bits > 0
    if subject.real and description.kind == "llamacpp":
        assert "unknown" not in description.version
        assert "batch-128" in model.settings


async def test_it_tells_its_load(subject: Subject) -> None:
    if subject.scripted is not None and subject.adapter.kind == "vllm":
        from engines import scripts

        subject.scripted.routes["GET /metrics"] = scripts.text(
            "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n"
        )
    await subject.model()
    load = await subject.adapter.load()
    for gauge in (load.running, load.waiting):
        assert gauge is None or gauge >= 0
    if subject.adapter.kind in ("builtin", "llamacpp", "vllm"):
        assert load.running is not None


@pytest.mark.parametrize(("operation", "fields"), BOTH)
async def test_a_stream_has_the_asked_name_a_finish_a_done_and_no_unasked_usage(
    subject: Subject, operation: Operation, fields: dict[str, Any]
) -> None:
    await need(subject, operation.capability)
    events, answer = await subject.stream(fields, operation=operation)
    assert events.pop() == "[DONE]"
    kind = "chat.completion.chunk" if operation is Operation.CHAT else "text_completion"
    assert {(event["model"], event["object"]) for event in events} == {(ASKED_NAME, kind)}
    assert all(event["choices"] and not event.get("usage") for event in events)
    assert text_of(events)
    finishes = [event["choices"][0]["finish_reason"] for event in events if event["choices"][0]["finish_reason"]]
    assert finishes == [answer.outcome.finish_reason]
    assert finishes[0] in ("stop", "length")
    outcome = answer.outcome
    assert outcome.whole
    assert outcome.first_token_at is not None
    assert outcome.last_token_at is not None
    assert outcome.first_token_at <= outcome.last_token_at
    assert outcome.prompt_tokens is not None
    assert outcome.prompt_tokens > 0
    assert outcome.output_tokens is not None
    assert 0 < outcome.output_tokens <= fields["max_tokens"]
    assert outcome.output_chunks > 0


@pytest.mark.parametrize(("operation", "fields"), BOTH)
async def test_usage_comes_once_at_the_end_to_those_who_ask(
    subject: Subject, operation: Operation, fields: dict[str, Any]
) -> None:
    await need(subject, operation.capability)
    events, answer = await subject.stream(fields, operation=operation, include_usage=True)
    assert events[-1] == "[DONE]"
    usages = [event["usage"] for event in events[:-1] if event.get("usage")]
    assert usages == [events[-2]["usage"]]
    assert events[-2]["model"] == ASKED_NAME
    assert usages[0]["prompt_tokens"] == answer.outcome.prompt_tokens
    assert usages[0]["completion_tokens"] == answer.outcome.output_tokens
    assert usages[0]["total_tokens"] == usages[0]["prompt_tokens"] + usages[0]["completion_tokens"]


@pytest.mark.parametrize(("operation", "fields"), BOTH)
async def test_a_whole_answer_is_one_body_in_openais_form(
    subject: Subject, operation: Operation, fields: dict[str, Any]
) -> None:
    await need(subject, operation.capability)
    body, answer = await subject.whole(fields, operation=operation)
    assert body["model"] == ASKED_NAME
    assert body["object"] == ("chat.completion" if operation is Operation.CHAT else "text_completion")
    assert body["id"]
    assert isinstance(body["created"], int)
    (choice,) = body["choices"]
    assert choice["index"] == 0
    assert choice["finish_reason"] == answer.outcome.finish_reason
    if operation is Operation.CHAT:
        assert choice["message"]["role"] == "assistant"
        assert choice["message"]["content"]
    else:
        assert choice["text"]
    assert body["usage"]["prompt_tokens"] == answer.outcome.prompt_tokens
    assert body["usage"]["completion_tokens"] == answer.outcome.output_tokens
    assert answer.outcome.whole


@pytest.mark.parametrize(("operation", "fields"), BOTH)
async def test_streamed_and_whole_say_the_same(subject: Subject, operation: Operation, fields: dict[str, Any]) -> None:
    await need(subject, operation.capability)
    await subject.whole(fields, operation=operation)  # the same prefix cache for both
    events, _ = await subject.stream(fields, operation=operation)
    body, _ = await subject.whole(fields, operation=operation)
    choice = body["choices"][0]
    assert text_of(events) == (choice["message"]["content"] if operation is Operation.CHAT else choice["text"])


async def test_embeddings_come_in_order_with_usage(subject: Subject) -> None:
    await need(subject, Capability.EMBEDDINGS)
    body, answer = await subject.whole({"input": ["a", "b c"]}, operation=Operation.EMBEDDINGS)
    assert body["model"] == ASKED_NAME
    assert [item["index"] for item in body["data"]] == [0, 1]
    assert all(len(item["embedding"]) > 1 for item in body["data"])
    assert answer.outcome.prompt_tokens is not None
    assert answer.outcome.whole


@pytest.mark.parametrize(("operation", "fields"), BOTH)
async def test_the_engines_tokeniser_counts_what_its_usage_says(
    subject: Subject, operation: Operation, fields: dict[str, Any]
) -> None:
    if subject.scripted is not None:
        pytest.skip("a scripted engine has no tokeniser")
    counted = await subject.adapter.count_tokens(subject.call(fields, operation))
    if counted is None:
        pytest.skip("this engine does not count")
    _, answer = await subject.whole(fields, operation=operation)
    assert counted == answer.outcome.prompt_tokens


async def test_unknown_fields_reach_the_engine_and_do_no_harm(subject: Subject) -> None:
    body, _ = await subject.whole({**HELLO, "nobody_knows_this": {"deep": [1, "ü"]}})
    assert body["choices"][0]["message"]["content"]
    if subject.scripted is not None:
        assert subject.scripted.requests[0].json["nobody_knows_this"] == {"deep": [1, "ü"]}


async def test_timings_are_the_engines_own_where_it_gives_them(real: Subject) -> None:
    if real.adapter.kind not in ("builtin", "llamacpp", "ollama"):
        pytest.skip("this engine gives no timings")
    _, answer = await real.stream(HELLO)
    outcome = answer.outcome
    assert outcome.decode_s is not None
    assert outcome.decode_s > 0
    if real.adapter.kind == "ollama" and not outcome.load_s:
        assert outcome.prefill_s is None  # it does not say how much of the prompt its cache held
    else:
        assert outcome.prefill_s is not None
        assert outcome.prefill_s > 0


async def test_the_prompt_is_seen_being_read(real: Subject) -> None:
    if real.adapter.kind not in ("llamacpp", "mlx"):
        pytest.skip("this engine does not report its progress")
    words = " ".join(f"word{i}" for i in range(60))
    events, answer = await real.stream({**HELLO, "messages": [{"role": "user", "content": words}], "max_tokens": 2})
    assert text_of(events)
    assert answer.outcome.prefill_all is not None
    assert answer.outcome.prefill_done == answer.outcome.prefill_all
    assert answer.outcome.prefill_all <= (answer.outcome.prompt_tokens or 0)


# What the engine has to be able to do


async def test_a_seed_makes_an_answer_repeat(real: Subject) -> None:
    fields = {**HELLO, "temperature": 1.5, "seed": 42}
    await real.whole(fields)
    first, second = [(await real.whole(fields))[0]["choices"][0]["message"]["content"] for _ in range(2)]
    assert first == second


async def test_a_stop_text_ends_the_answer_before_it(real: Subject) -> None:
    full, _ = await real.whole({**SKY, "max_tokens": 16}, operation=Operation.COMPLETION)
    text = full["choices"][0]["text"]
    word = text.split()[2]
    if real.adapter.kind == "mlx":
        word = (
            f" {word}"  # it compares tokens: a stop text that begins inside of one is cut out, and the answer goes on
        )
    body, answer = await real.whole({**SKY, "max_tokens": 16, "stop": [word]}, operation=Operation.COMPLETION)
    assert body["choices"][0]["text"] == text[: text.index(word)]
    assert answer.outcome.finish_reason == "stop"


async def test_a_json_schema_is_kept(real: Subject) -> None:
    await need(real, Capability.JSON_SCHEMA)
    schema = {"type": "object", "properties": {"answer": {"enum": [42]}}, "required": ["answer"]}
    schema["additionalProperties"] = False
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    # A form leaves room for blanks, and a tiny model that wants to say something else fills it with them.
    ask = [{"role": "user", "content": 'Repeat this and nothing else: {"answer": 42}'}]
    body, _ = await real.whole({**HELLO, "messages": ask, "response_format": form, "max_tokens": 40})
    assert json.loads(body["choices"][0]["message"]["content"]) == {"answer": 42}


async def test_logprobs_come_for_each_token_streamed_or_not(real: Subject) -> None:
    await need(real, Capability.LOGPROBS)
    fields = {**HELLO, "logprobs": True, "top_logprobs": 2, "max_tokens": 4}
    await real.whole(fields)
    body, answer = await real.whole(fields)
    tokens = body["choices"][0]["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens) == body["choices"][0]["message"]["content"]
    assert len(tokens) == answer.outcome.output_tokens
    assert all(len(token["top_logprobs"]) == 2 for token in tokens)
    events, _ = await real.stream(fields)
    pieces = [event["choices"][0].get("logprobs") or {} for event in events[:-1]]
    assert [token["token"] for piece in pieces for token in piece.get("content") or ()] == [t["token"] for t in tokens]


@pytest.mark.parametrize("stream", [False, True])
async def test_several_choices_come_each_with_its_index_and_finish(real: Subject, stream: bool) -> None:
    await need(real, Capability.CHOICES)
    fields = {**HELLO, "n": 2, "temperature": 1.0, "max_tokens": 5}
    if stream:
        events, answer = await real.stream(fields, include_usage=True)
        choices = [choice for event in events[:-1] for choice in event["choices"]]
        usage = [event["usage"] for event in events[:-1] if event.get("usage")]
        assert usage == [events[-2]["usage"]]
        usage = usage[0]
    else:
        body, answer = await real.whole(fields)
        choices, usage = body["choices"], body["usage"]
    assert {choice["index"] for choice in choices} == {0, 1}
    assert {choice["index"] for choice in choices if choice["finish_reason"]} == {0, 1}
    assert usage["completion_tokens"] == answer.outcome.output_tokens
    assert answer.outcome.output_tokens is not None
    assert answer.outcome.output_tokens > 5 or "stop" in {choice["finish_reason"] for choice in choices}
