"""The engine over HTTP: the real process with the real small model, asked by OpenAI's own client."""

from __future__ import annotations

import json
import shutil
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Semaphore
from typing import Any

import httpx
import openai
import pytest
from safetensors.torch import load_file, save_file
from serving import LIMIT_S, NAME, Served, serving, start

CONTEXT = 1024
HELLO: dict[str, Any] = {
    "model": NAME,
    "messages": [{"role": "user", "content": "Say hello, and then tell me about the sea."}],
    "temperature": 0,
    "max_tokens": 24,
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("get_time", "get_weather")
]


@pytest.fixture(scope="module")
def served(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("server") / "log"
    options = ("--precision", "fp32", "--context", str(CONTEXT), "--max-sequences", "8", "--token-budget", "256")
    with serving(smollm2, log, *options) as found:
        yield found
    assert found.process.returncode == 0, log.read_text()
    assert "Traceback" not in log.read_text()


def stream(served: Served, body: dict[str, Any]) -> tuple[str, list[Any]]:
    """The text of a stream's first choice, and its chunks."""
    chunks = list(served.client.chat.completions.create(**{**body, "stream": True}))
    said = [one.choices[0].delta.content or "" for one in chunks if one.choices and not one.choices[0].index]
    return "".join(said), chunks


def test_it_answers_from_the_first_moment_and_tells_how_far_it_has_come(served: Served) -> None:
    loading = served.seen[:-1]
    assert loading
    assert {state["http"] for state in loading} == {503}
    progress = [state["progress"] for state in served.seen]
    assert progress == sorted(progress)
    assert progress[-1] == 1.0
    card = httpx.get(f"{served.url}/v1/models").json()["data"][0]
    assert (card["id"], card["owned_by"], card["precision"], card["context"]) == (NAME, "paceline", "fp32", CONTEXT)
    assert (card["slots"], bool(card["version"]), bool(card["digest"])) == (8, True, True)
    assert (card["cache_block"], card["chat"]) == (16, True)
    assert card["id"] in served.log.read_text()


def test_streamed_and_whole_say_the_same_with_usage_and_timings(served: Served) -> None:
    whole = served.client.chat.completions.create(**HELLO)
    text, chunks = stream(served, {**HELLO, "stream_options": {"include_usage": True}})
    assert whole.choices[0].message.content == text
    assert whole.choices[0].finish_reason == chunks[-2].choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == chunks[-1].usage.completion_tokens == 24
    assert whole.usage.prompt_tokens == chunks[-1].usage.prompt_tokens
    for timings in (whole.model_extra["timings"], chunks[-2].model_extra["timings"]):  # type: ignore[index]
        assert timings["prefill_ms"] > 0
        assert timings["decode_ms"] > 0
        assert timings["batch_size"] >= 1
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0


def test_a_stop_string_across_tokens_is_caught_and_not_shown(served: Served) -> None:
    whole = served.client.chat.completions.create(**HELLO, logprobs=True)
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    tokens = [one.token for one in logprobs.content or ()]
    before = "".join(tokens[:5])
    stop = tokens[4][-1] + tokens[5][:2]
    text, chunks = stream(served, {**HELLO, "stop": [stop]})
    assert len(stop) > 1
    assert text == "".join(tokens).partition(stop)[0]
    assert before.startswith(text)
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_no_code_point_is_split(served: Served) -> None:
    form = {"type": "regex", "regex": "(🙂|漢|é|👩‍🚀){6}"}
    body = {**HELLO, "temperature": 1.0, "seed": 3, "max_tokens": 80, "response_format": form}
    pieces: list[str] = []
    with httpx.stream("POST", f"{served.url}/v1/chat/completions", json={**body, "stream": True}) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                pieces.append(json.loads(line[6:])["choices"][0]["delta"].get("content") or "")
    text = "".join(pieces)
    assert "�" not in text
    assert len(text.replace("👩‍🚀", "x")) == 6
    assert text == served.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"]


def test_three_choices_of_one_seed_differ_and_repeat(served: Served) -> None:
    body = {**HELLO, "temperature": 1.2, "seed": 11, "max_tokens": 12}
    three, again = [served.client.chat.completions.create(**body, n=3) for _ in range(2)]
    texts = [choice.message.content for choice in three.choices]
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts == [choice.message.content for choice in again.choices]
    assert texts[0] == served.client.chat.completions.create(**body).choices[0].message.content
    assert three.usage is not None
    assert three.usage.completion_tokens <= 36
    _, chunks = stream(served, {**body, "n": 3})
    ends = [one.choices[0].index for one in chunks if one.choices[0].finish_reason]
    assert sorted(ends) == [0, 1, 2]


def test_eight_streams_at_once_say_what_each_says_alone(served: Served) -> None:
    bodies = [
        {
            **HELLO,
            "messages": [{"role": "user", "content": f"Tell me about the number {number}."}],
            "temperature": 0.9 * (number % 2),
            "seed": number,
            "max_tokens": 16,
        }
        for number in range(8)
    ]
    alone = [stream(served, body)[0] for body in bodies]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda body: stream(served, body), bodies))
    assert [text for text, _ in together] == alone
    assert max(chunks[-1].model_extra["timings"]["batch_size"] for _, chunks in together) > 1.5


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_time", "get_weather"}),
        ({"type": "function", "function": {"name": "get_weather"}}, {"get_weather"}),
    ],
)
def test_a_call_that_is_asked_for_is_made(served: Served, choice: Any, names: set[str], streamed: bool) -> None:
    body = {**HELLO, "tools": TOOLS, "tool_choice": choice, "max_tokens": 60}
    if streamed:
        _, chunks = stream(served, body)
        pieces = [piece for one in chunks for piece in one.choices[0].delta.tool_calls or ()]
        assert {piece.index for piece in pieces} == {0}
        assert pieces[0].id
        name = pieces[0].function.name
        arguments = "".join(piece.function.arguments or "" for piece in pieces)
        finish = chunks[-1].choices[0].finish_reason
        assert not any(one.choices[0].delta.content for one in chunks)
    else:
        answer = served.client.chat.completions.create(**body).choices[0]
        (call,) = answer.message.tool_calls or ()
        assert call.type == "function"
        name, arguments, finish = call.function.name, call.function.arguments, answer.finish_reason
        assert not answer.message.content
    assert name in names
    assert json.loads(arguments)["city"] in ("Paris", "Rome")
    assert finish == "tool_calls"


def test_tools_that_may_be_called_need_not_be(served: Served) -> None:
    answer = served.client.chat.completions.create(**HELLO, tools=TOOLS).choices[0]  # type: ignore[arg-type]
    assert answer.message.content or answer.message.tool_calls
    forbidden = served.client.chat.completions.create(**HELLO, tools=TOOLS, tool_choice="none")  # type: ignore[call-overload]
    assert not forbidden.choices[0].message.tool_calls
    assert forbidden.usage.prompt_tokens < 60


def test_a_schema_is_kept(served: Served) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": schema}}
    said = served.client.chat.completions.create(**{**HELLO, "max_tokens": 80}, response_format=form).choices[0]
    person = json.loads(said.message.content or "")
    assert set(person) == {"name", "age"}
    assert type(person["age"]) is int


def test_a_form_that_is_none_is_refused_by_name(served: Served) -> None:
    answer = served.post("/v1/chat/completions", {**HELLO, "response_format": {"type": "regex", "regex": "(a"}})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "response_format"


def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers(served: Served) -> None:
    words = [{"role": "user", "content": "word " * 1500}]
    with pytest.raises(openai.BadRequestError) as caught:
        served.client.chat.completions.create(**{**HELLO, "messages": words})
    assert caught.value.code == "context_length_exceeded"
    assert str(CONTEXT) in caught.value.message
    counted = served.post("/tokenize", {"messages": words}).json()["count"]
    assert str(counted) in caught.value.message


def test_a_wrong_model_and_a_wrong_type_are_refused_by_name(served: Served) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        served.client.chat.completions.create(**{**HELLO, "model": "other"})
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        served.client.chat.completions.create(**{**HELLO, "temperature": "hot"})
    assert wrong.value.param == "temperature"
    answer = httpx.post(f"{served.url}/v1/chat/completions", content=b"{")
    assert answer.status_code == 400
    assert httpx.get(f"{served.url}/nowhere").json()["error"]["message"]


def test_embeddings_are_the_same_as_numbers_and_as_base64(served: Served) -> None:
    texts = ["the sea", "the ocean", "an invoice"]
    coded = served.client.embeddings.create(model=NAME, input=texts)  # the client asks for base64, and decodes it
    plain = served.client.embeddings.create(model=NAME, input=texts, encoding_format="float")
    vectors = [one.embedding for one in plain.data]
    for one, other in zip(coded.data, vectors, strict=True):
        assert one.embedding == pytest.approx(other, abs=1e-6)
        assert sum(value * value for value in other) == pytest.approx(1, abs=1e-5)

    def similar(one: int, other: int) -> float:
        return sum(a * b for a, b in zip(vectors[one], vectors[other], strict=True))

    assert similar(0, 1) > similar(0, 2)


def test_tokens_come_back_as_the_text(served: Served) -> None:
    text = "Grüße, 世界 🙂!"
    tokens = served.post("/tokenize", {"prompt": text}).json()["tokens"]
    assert served.post("/detokenize", {"tokens": tokens}).json()["prompt"] == text


def test_a_completion_takes_texts_and_tokens_together_with_their_logprobs(served: Served) -> None:
    tokens = served.post("/tokenize", {"prompt": "The sky is"}).json()["tokens"]
    options: dict[str, Any] = {"model": NAME, "max_tokens": 5, "temperature": 0}
    by_text = served.client.completions.create(**options, prompt=["The sky is", "One, two,"], logprobs=2)
    by_tokens = served.client.completions.create(**options, prompt=tokens)
    assert by_text.choices[0].text == by_tokens.choices[0].text
    assert by_text.choices[1].text != by_text.choices[0].text
    logprobs = by_text.choices[0].logprobs
    assert logprobs is not None
    assert "".join(logprobs.tokens or ()) == by_text.choices[0].text
    assert all(len(best) == 2 for best in logprobs.top_logprobs or ())


def test_more_tokens_than_the_end_of_text_are_made_where_that_is_asked_for(served: Served) -> None:
    body = {**HELLO, "messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 60}
    short = served.post("/v1/chat/completions", body).json()
    assert short["choices"][0]["finish_reason"] == "stop"
    long = served.post("/v1/chat/completions", {**body, "ignore_eos": True}).json()
    assert long["usage"]["completion_tokens"] == 60
    least = short["usage"]["completion_tokens"] + 5
    longer = served.post("/v1/chat/completions", {**body, "min_tokens": least}).json()
    assert longer["usage"]["completion_tokens"] > least


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("words", [3, 250], ids=["while it answers", "while it reads"])
def test_a_client_that_leaves_frees_its_blocks(served: Served, words: int, streamed: bool) -> None:
    served.until(served.idle, "nothing else runs")
    text = " ".join(f"word{number}" for number in range(words))
    body = {**HELLO, "messages": [{"role": "user", "content": text}], "max_tokens": 800, "ignore_eos": True}
    content = json.dumps({**body, "stream": streamed}).encode()
    place = httpx.URL(served.url)
    with socket.create_connection((place.host, place.port), timeout=LIMIT_S) as client:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
        client.sendall(head.encode() + content)
        served.until(lambda: served.gauge("requests_running") > 0, "it runs")
        assert served.gauge("cache_usage_ratio") > 0
        generated = served.gauge("generated_tokens_total")
    served.until(served.idle, "it has ended")
    assert served.gauge("cache_usage_ratio") == 0
    assert served.gauge("generated_tokens_total") - generated < 400


def test_a_stop_signal_ends_what_runs_within_its_time(smollm2: Path, tmp_path: Path) -> None:
    with serving(smollm2, tmp_path / "log", "--precision", "fp32", "--context", "512") as served:
        body = {**HELLO, "max_tokens": 20, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=body, timeout=LIMIT_S) as answer:
            lines = answer.iter_lines()
            next(lines)
            served.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert served.process.wait(LIMIT_S) == 0
        assert "Traceback" not in served.log.read_text()


def test_a_stop_signal_under_load_is_a_success_within_its_grace(smollm2: Path, tmp_path: Path) -> None:
    def ask(_: int) -> None:
        body = {**HELLO, "max_tokens": 2000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=body, timeout=LIMIT_S) as answer:
            lines = answer.iter_lines()
            next(lines)
            begun.release()
            for _ in lines:
                pass

    begun = Semaphore(0)
    with (
        serving(smollm2, tmp_path / "log", "--precision", "fp32", "--context", "4096") as served,
        ThreadPoolExecutor(8) as clients,
    ):
        asked = [clients.submit(ask, number) for number in range(8)]
        for _ in asked:
            assert begun.acquire(timeout=LIMIT_S)
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(LIMIT_S) == 0
        log = served.log.read_text()
    assert "terminate called" not in log
    assert "Traceback" not in log


def test_a_model_that_cannot_be_read_ends_the_process_with_one_line_that_names_it(
    smollm2: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(smollm2, broken)
    weights = broken / "model.safetensors"
    tensors = load_file(weights)
    del tensors["model.norm.weight"]
    save_file(tensors, weights)
    for model, names in ((tmp_path / "nowhere", "nowhere"), (broken, "model.norm.weight")):
        process, _ = start(model, tmp_path / "log")
        assert process.wait(LIMIT_S) == 1
        lines = (tmp_path / "log").read_text().splitlines()
        assert len(lines) == 1
        assert "cannot be served" in lines[0]
        assert names in lines[0]
