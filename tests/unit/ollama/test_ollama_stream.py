"""Ollama's NDJSON becomes OpenAI's events. ``recorded``: what a real Ollama sent; ``scripted``: what it could send."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from typing import Any

import pytest
from engines.answers import call, events, read_all, text_of
from engines.recorded import lines, recorded
from engines.scripts import drop, hang, status, whole
from engines.signals import Gate
from engines.subject import rested

from adapters.base import Endpoint
from adapters.errors import Broken, Busy, Interrupted, Loading, Rejected, TimedOut, Unreachable
from adapters.ollama import OllamaAdapter
from policies.types import Operation

VERSIONS = ["0.24", "0.32"]
END = {"done": True, "done_reason": "stop", "prompt_eval_count": 5, "eval_count": 3, "load_duration": 1_000_000}


def says(content: str = "", **message: Any) -> dict[str, Any]:
    return {"model": "m", "message": {"role": "assistant", "content": content, **message}, "done": False}


async def stream_of(ollama, script, **given: Any) -> tuple[list[dict[str, Any]], Any]:
    ollama.engine.next(script)
    answer = await ollama.adapter.send(call(given.pop("body", None), engine_model="smollm2", **given))
    return events(await read_all(answer)), answer.outcome


@pytest.mark.parametrize("version", VERSIONS)
async def test_recorded_chat_becomes_chunks(ollama, version: str) -> None:
    chunks, outcome = await stream_of(ollama, recorded(f"ollama/{version}/chat_stream"))
    said = text_of(chunks)
    assert said.startswith("Hello there")
    assert len(chunks) == 8 + 1
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "role" not in chunks[1]["choices"][0]["delta"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk["model"] for chunk in chunks} == {"asked-for"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 8 + ["length"]
    assert (outcome.prompt_tokens, outcome.output_tokens, outcome.output_chunks) == (12, 8, 8)
    assert (outcome.whole, outcome.finish_reason) == (True, "length")
    assert outcome.first_token_at <= outcome.last_token_at


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_warm_answer_has_no_load_time_and_teaches_no_prefill_speed(ollama, version: str) -> None:
    await ollama.resident("smollm2", 4096)
    _, outcome = await stream_of(ollama, recorded(f"ollama/{version}/chat_stream"))
    assert outcome.load_s == 0.0
    assert outcome.prefill_s is None
    assert outcome.cached_tokens is None
    assert outcome.decode_s == pytest.approx(0.2, abs=0.2)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_cold_answer_tells_how_long_the_model_took_to_load(ollama, version: str) -> None:
    await ollama.resident("smollm2", 4096)  # what we believe, wrongly: the load time alone shows it
    await stream_of(ollama, recorded(f"ollama/{version}/chat_nostream"))
    _, outcome = await stream_of(ollama, recorded(f"ollama/{version}/cold_chat"))
    assert outcome.load_s == pytest.approx(0.86, abs=0.1)
    assert outcome.prefill_s is not None


async def test_usage_is_shown_only_to_those_who_asked(ollama) -> None:
    script = recorded("ollama/0.32/chat_stream")
    chunks, _ = await stream_of(ollama, script, include_usage=True)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {"prompt_tokens": 12, "completion_tokens": 8, "total_tokens": 20}
    chunks, outcome = await stream_of(ollama, script)
    assert not any("usage" in chunk for chunk in chunks)
    assert outcome.prompt_tokens == 12


@pytest.mark.parametrize("version", VERSIONS)
async def test_recorded_answer_is_joined_for_a_client_that_does_not_stream(ollama, version: str) -> None:
    ollama.engine.next(recorded(f"ollama/{version}/chat_stream"), recorded(f"ollama/{version}/tool_call_stream"))
    answer = await ollama.adapter.send(call(engine_model="smollm2", stream=False))
    assert not answer.streamed
    body = json.loads(await read_all(answer))
    assert body["object"] == "chat.completion"
    assert body["model"] == "asked-for"
    (choice,) = body["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"].startswith("Hello there")
    assert choice["finish_reason"] == "length"
    assert body["usage"] == {"prompt_tokens": 12, "completion_tokens": 8, "total_tokens": 20}
    assert ollama.engine.requests[0].json["stream"] is True

    answer = await ollama.adapter.send(call(engine_model="smollm2", stream=False))
    (choice,) = json.loads(await read_all(answer))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "get_time", "arguments": '{"city":"Paris"}'}


@pytest.mark.parametrize("version", VERSIONS)
async def test_recorded_tool_call_gets_string_arguments_and_its_finish_reason(ollama, version: str) -> None:
    chunks, outcome = await stream_of(ollama, recorded(f"ollama/{version}/tool_call_stream"))
    made = [made for chunk in chunks for made in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert len(made) == 1
    assert made[0]["index"] == 0
    assert made[0]["id"].startswith("call_")
    assert made[0]["type"] == "function"
    assert made[0]["function"]["name"] == "get_time"
    assert json.loads(made[0]["function"]["arguments"]) == {"city": "Paris"}
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert outcome.finish_reason == "tool_calls"
    assert outcome.first_token_at is not None


async def test_scripted_parallel_calls_get_an_index_and_an_id_each(ollama) -> None:
    def made(name: str, **more: Any) -> dict[str, Any]:
        return {"function": {"index": 0, "name": name, "arguments": {"a": 1.0, "b": ["é"]}}, **more}

    script = lines(says(tool_calls=[made("one"), made("two")]), says(tool_calls=[made("three", id="own")]), END)
    chunks, _ = await stream_of(ollama, script)
    calls = [made for chunk in chunks for made in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert [entry["index"] for entry in calls] == [0, 1, 2]
    assert len({entry["id"] for entry in calls}) == 3
    assert calls[2]["id"] == "own"
    assert json.loads(calls[0]["function"]["arguments"]) == {"a": 1.0, "b": ["é"]}


async def test_scripted_thinking_becomes_reasoning_content(ollama) -> None:
    script = lines(says(thinking="Hmm"), says(thinking=" so", content=""), says("Yes", thinking="."), END)
    chunks, outcome = await stream_of(ollama, script)
    assert text_of(chunks, "reasoning_content") == "Hmm so."
    assert text_of(chunks) == "Yes"
    assert "content" not in chunks[0]["choices"][0]["delta"]
    assert outcome.output_chunks == 3


@pytest.mark.parametrize("version", VERSIONS)
async def test_recorded_logprobs_keep_tokens_bytes_and_alternatives(ollama, version: str) -> None:
    chunks, _ = await stream_of(ollama, recorded(f"ollama/{version}/chat_logprobs"))
    content = chunks[0]["choices"][0]["logprobs"]["content"]
    assert content[0]["token"] == "Hello"
    assert bytes(content[0]["bytes"]) == b"Hello"
    assert content[0]["logprob"] == pytest.approx(-2.04, abs=0.05)
    assert len(content[0]["top_logprobs"]) == 2


@pytest.mark.parametrize("version", VERSIONS)
async def test_recorded_completion_becomes_text_chunks(ollama, version: str) -> None:
    body = {"prompt": "The sky is"}
    script = recorded(f"ollama/{version}/generate_stream")
    chunks, outcome = await stream_of(ollama, script, body=body, operation=Operation.COMPLETION)
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert len(text_of(chunks)) > 5
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert outcome.output_tokens == 6


async def test_scripted_completion_logprobs_take_the_older_form(ollama) -> None:
    top = [{"token": " a", "logprob": -0.5}, {"token": " b", "logprob": -1.5}]
    first = {"response": " a", "logprobs": [{"token": " a", "logprob": -0.5, "top_logprobs": top}], "done": False}
    second = {"response": " c", "logprobs": [{"token": " c", "logprob": -0.25}], "done": False}
    chunks, _ = await stream_of(
        ollama, lines(first, second, END), body={"prompt": "x", "logprobs": 2}, operation=Operation.COMPLETION
    )
    assert chunks[0]["choices"][0]["logprobs"] == {
        "tokens": [" a"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{" a": -0.5, " b": -1.5}],
        "text_offset": [0],
    }
    assert chunks[1]["choices"][0]["logprobs"]["text_offset"] == [2]


async def test_scripted_text_survives_any_cut_between_bytes(ollama) -> None:
    text = 'é "quoted" \\ 😀 <b>\n'
    data = (json.dumps(says(text), ensure_ascii=False) + "\n" + json.dumps(END) + "\n").encode()

    async def byte_by_byte(exchange) -> None:
        await exchange.head(headers={"content-type": "application/x-ndjson"})
        for offset in range(0, len(data), 3):
            await exchange.data(data[offset : offset + 3])
            await asyncio.sleep(0)
        await exchange.end()

    chunks, _ = await stream_of(ollama, byte_by_byte)
    assert text_of(chunks) == text


async def test_scripted_last_line_without_a_line_end_counts(ollama) -> None:
    async def script(exchange) -> None:
        await exchange.head()
        await exchange.data((json.dumps(says("x")) + "\n" + json.dumps(END)).encode())
        await exchange.end()

    chunks, outcome = await stream_of(ollama, script)
    assert outcome.whole
    assert text_of(chunks) == "x"


@pytest.mark.parametrize("version", VERSIONS)
async def test_recorded_death_of_the_runner_ends_the_stream_without_done(ollama, version: str) -> None:
    gate = Gate(1)
    ollama.engine.next(recorded(f"ollama/{version}/runner_dies_mid_stream", gate))
    answer = await ollama.adapter.send(call(engine_model="smollm2"))
    received = [await answer.read()]
    gate.open()
    with pytest.raises(Interrupted, match="unexpected EOF") as caught:
        received.append(await read_all(answer))
    assert b"[DONE]" not in b"".join(piece or b"" for piece in received)
    assert caught.value.engine == "here"
    assert not answer.outcome.whole


async def test_scripted_text_that_came_along_with_the_error_still_reaches_the_client(ollama) -> None:
    gate = Gate(1)
    rest = json.dumps(says(" there")) + "\n" + json.dumps({"error": "gone"})
    ollama.engine.next(lines(says("Hello"), rest, gate=gate))
    answer = await ollama.adapter.send(call(engine_model="smollm2"))
    assert b"Hello" in (await answer.read() or b"")
    gate.open()
    assert b" there" in (await answer.read() or b"")
    with pytest.raises(Interrupted, match="gone"):
        await answer.read()


async def test_scripted_error_before_the_first_token_can_still_go_elsewhere(ollama) -> None:
    ollama.engine.next(lines({"error": "llama runner process has terminated: exit status 2"}))
    answer = await ollama.adapter.send(call(engine_model="smollm2"))
    with pytest.raises(Broken, match="terminated"):
        await answer.read()


@pytest.mark.parametrize("clean", [True, False])
async def test_scripted_end_without_the_last_line_is_no_whole_answer(ollama, clean: bool) -> None:
    gate = Gate(1)
    ollama.engine.next(lines(says("Hel"), says("lo"), clean=clean, gate=gate))
    answer = await ollama.adapter.send(call(engine_model="smollm2"))
    assert b"Hel" in (await answer.read() or b"")
    gate.open()
    with pytest.raises(Interrupted):
        await read_all(answer)
    assert not answer.outcome.whole


async def test_scripted_answer_that_ollama_stops_for_repeating_itself_ends_by_length(ollama) -> None:
    chunks, outcome = await stream_of(ollama, lines(*[says(" no")] * 32))
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert outcome.whole


async def test_scripted_answer_that_outgrew_its_context_says_length(ollama) -> None:
    await ollama.resident("smollm2", 4096)
    script = lines(says("x"), {**END, "prompt_eval_count": 4000, "eval_count": 200})
    chunks, outcome = await stream_of(ollama, script)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert outcome.finish_reason == "length"


async def test_scripted_nonsense_instead_of_lines_is_broken(ollama) -> None:
    ollama.engine.next(lines("<html>busy</html>"))
    answer = await ollama.adapter.send(call(engine_model="smollm2"))
    with pytest.raises(Broken, match="not Ollama's JSON"):
        await answer.read()


@pytest.mark.parametrize(
    ("name", "kind", "status_", "code"),
    [
        ("0.24/queue_full", Busy, None, None),
        ("0.24/bad_option_type", Rejected, 400, None),
        ("0.32/bad_option_type", Rejected, 400, None),
        ("0.24/format_bad", Rejected, 400, None),
        ("0.24/format_bad_schema", Rejected, 400, None),
        ("0.32/format_bad_schema", Rejected, 400, None),
        ("0.32/bad_type", Rejected, 400, None),
        ("0.32/bad_json", Rejected, 400, None),
        ("0.32/image_unsupported", Rejected, 400, "unsupported"),
        ("0.24/tools_unsupported", Rejected, 400, "unsupported"),
        ("0.32/think_unsupported", Rejected, 400, "unsupported"),
        ("0.24/missing_model", Rejected, 404, "model_not_found"),
        ("0.32/wrong_path", Rejected, 400, "unsupported"),
        ("0.32/wrong_method", Rejected, 400, "unsupported"),
    ],
)
async def test_recorded_error_keeps_its_meaning(ollama, name: str, kind: type, status_: int | None, code) -> None:
    ollama.engine.next(recorded(f"ollama/{name}"))
    with pytest.raises(kind) as caught:
        await ollama.adapter.send(call(engine_model="smollm2"))
    assert caught.value.engine == "here"
    assert '{"error"' not in caught.value.message
    if status_ is not None:
        assert (caught.value.status, caught.value.code) == (status_, code)


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (status(403, body=" "), Broken),
        (whole({"error": "this model does not support embeddings"}, 501), Rejected),
        (whole({"error": "model requires more system memory (9 GiB) than is available (1 GiB)"}, 500), Broken),
        (whole({"error": "llm server loading model"}, 503), Loading),
        (drop(), Broken),
    ],
)
async def test_scripted_refusals_are_told_apart(ollama, script, kind: type) -> None:
    ollama.engine.next(script)
    with pytest.raises(kind):
        await ollama.adapter.send(call(engine_model="smollm2"))


async def test_scripted_silence_is_limited_and_a_closed_port_is_unreachable(scripted) -> None:
    engine = scripted()
    engine.next(hang())
    adapter = OllamaAdapter(Endpoint("here", engine.url, first_byte_timeout_s=0.05))
    with pytest.raises(TimedOut):
        await adapter.send(call())
    engine.stop()
    with pytest.raises(Unreachable):
        await adapter.send(call())
    await adapter.aclose()


async def test_a_client_that_leaves_closes_the_connection_in_all_three_cases(ollama) -> None:
    engine, adapter = ollama.engine, ollama.adapter
    engine.next(hang())
    task = asyncio.ensure_future(adapter.send(call(engine_model="smollm2")))
    before = await engine.received(0)
    task.cancel()
    await before.left.wait()

    async def silent_after(exchange, *given: dict[str, Any]) -> None:
        await exchange.head()
        for value in given:
            await exchange.data(json.dumps(value).encode() + b"\n")
        await asyncio.Event().wait()

    engine.next(silent_after)
    answer = await adapter.send(call(engine_model="smollm2"))
    reading = asyncio.ensure_future(answer.read())
    silent = await engine.received(1)
    await asyncio.sleep(0)
    reading.cancel()
    await silent.left.wait()

    engine.next(lambda exchange: silent_after(exchange, says("Hel")))
    answer = await adapter.send(call(engine_model="smollm2"))
    assert b"Hel" in (await answer.read() or b"")
    answer.close()
    await (await engine.received(2)).left.wait()


async def test_connections_are_used_again_after_a_whole_answer(ollama) -> None:
    for _ in range(3):
        await stream_of(ollama, recorded("ollama/0.32/chat_stream"))
        await rested(ollama.adapter)
    assert ollama.adapter._transport.open_connections == 1


async def test_scripted_embeddings_come_as_numbers_or_as_base64(ollama) -> None:
    script = whole({"model": "m", "embeddings": [[0.5, -0.25], [1, 2e-3]], "prompt_eval_count": 7, "load_duration": 9})
    ollama.engine.always(script)
    body = {"input": ["one", "two"]}
    answer = await ollama.adapter.send(call(body, engine_model="smollm2", operation=Operation.EMBEDDINGS, stream=False))
    result = json.loads(await read_all(answer))
    assert [entry["embedding"] for entry in result["data"]] == [[0.5, -0.25], [1, 0.002]]
    assert [entry["index"] for entry in result["data"]] == [0, 1]
    assert result["model"] == "asked-for"
    assert result["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert not answer.streamed
    assert (answer.outcome.whole, answer.outcome.prompt_tokens) == (True, 7)

    body["encoding_format"] = "base64"  # type: ignore[assignment]
    answer = await ollama.adapter.send(call(body, engine_model="smollm2", operation=Operation.EMBEDDINGS, stream=False))
    data = json.loads(await read_all(answer))["data"]
    assert struct.unpack("<2f", base64.b64decode(data[0]["embedding"])) == (0.5, -0.25)
