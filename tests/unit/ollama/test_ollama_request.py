"""OpenAI's requests as Ollama's own: what an entry of ``options`` becomes, what passes, what is refused and why."""

from __future__ import annotations

from typing import Any

import pytest
from engines.answers import CHAT_BODY, call, read_all
from engines.recorded import exchange_of, recorded
from engines.scripts import whole

from adapters.base import Endpoint
from adapters.errors import Rejected
from adapters.ollama import OllamaAdapter
from policies.types import Operation

DONE = recorded("ollama/0.32/chat_nostream")
CITY_TOOL = exchange_of("ollama/0.32/tool_call_stream")["request"]["body"]["tools"]


async def sent_for(ollama, body: dict[str, Any] | None = None, **given: Any) -> tuple[str, dict[str, Any]]:
    """The path and the body that reach Ollama."""
    ollama.engine.always(DONE)
    count = len(ollama.engine.requests)
    merged = {**CHAT_BODY, **(body or {})} if given.get("operation", Operation.CHAT) is Operation.CHAT else body
    answer = await ollama.adapter.send(call(merged, engine_model="smollm2", **given))
    answer.close()
    received = ollama.engine.requests[count]
    return received.path, received.json


async def refusal_of(ollama, body: dict[str, Any], **given: Any) -> Rejected:
    with pytest.raises(Rejected) as caught:
        await sent_for(ollama, body, **given)
    assert ollama.engine.requests == []
    assert caught.value.engine == "here"
    return caught.value


async def test_a_chat_is_streamed_under_the_engines_name_and_never_cut(ollama) -> None:
    path, sent = await sent_for(ollama, {"stream": False, "user": "u", "stream_options": {"include_usage": True}})
    assert path == "/api/chat"
    assert sent["model"] == "smollm2"
    assert sent["stream"] is True
    assert sent["truncate"] is False
    assert "shift" not in sent
    assert sent["messages"] == [{"role": "user", "content": "Say hi."}]
    assert not {"user", "stream_options", "max_tokens"} & sent.keys()


async def test_sampling_goes_into_options(ollama) -> None:
    given = {"temperature": 0, "top_p": 0.5, "seed": 7, "presence_penalty": 0.1, "frequency_penalty": 0.2}
    more = {"top_k": 3, "min_p": 0.05, "repetition_penalty": 1.1, "stop": ".", "max_completion_tokens": 9}
    _, sent = await sent_for(ollama, {**given, **more})
    expected = {**given, "top_k": 3, "min_p": 0.05, "repeat_penalty": 1.1, "stop": ["."], "num_predict": 9}
    assert sent["options"] == {**expected, "num_ctx": 4096}
    assert not given.keys() & sent.keys()


async def test_several_stops_stay_several(ollama) -> None:
    _, sent = await sent_for(ollama, {"stop": ["a", "b"]})
    assert sent["options"]["stop"] == ["a", "b"]


async def test_the_clients_own_options_pass_but_for_those_that_reload_the_model(ollama) -> None:
    own = {"mirostat": 2, "num_keep": 4, "num_batch": 64, "num_thread": 1, "num_gpu": 0, "num_ctx": 2048, "top_k": 1}
    _, sent = await sent_for(ollama, {"options": own, "top_k": 5, "shift": False, "truncate": True})
    options = sent["options"]
    assert (options["mirostat"], options["num_keep"], options["top_k"]) == (2, 4, 5)
    assert not {"num_batch", "num_thread", "num_gpu"} & options.keys()
    assert options["num_ctx"] == 4096  # at least what the client asked for, and what others use
    assert "shift" not in sent
    assert sent["truncate"] is False


async def test_a_client_may_ask_for_a_larger_context(ollama) -> None:
    await ollama.adapter.describe()
    _, sent = await sent_for(ollama, {"options": {"num_ctx": 6000}})
    assert sent["options"]["num_ctx"] == 8192


async def test_fields_that_nobody_knows_pass_and_keep_alive_is_the_operators_unless_the_client_says(ollama) -> None:
    options = {"keep_alive": "30m", "options": {"num_batch": 128, "temperature": 0.1}}
    adapter = OllamaAdapter(Endpoint("here", ollama.engine.url, options=options))
    ollama.engine.always(DONE)
    (await adapter.send(call({**CHAT_BODY, "future": {"x": [1]}}))).close()
    (await adapter.send(call({**CHAT_BODY, "keep_alive": -1, "temperature": 0.9}))).close()
    first, second = (request.json for request in ollama.engine.requests)
    assert first["future"] == {"x": [1]}
    assert first["keep_alive"] == "30m"
    assert (first["options"]["num_batch"], first["options"]["temperature"]) == (128, 0.1)
    assert second["keep_alive"] == -1
    assert (second["options"]["num_batch"], second["options"]["temperature"]) == (128, 0.9)
    await adapter.aclose()


async def test_tool_arguments_become_objects_and_results_find_their_name(ollama) -> None:
    function = {"name": "get_time", "arguments": '{"city": "Paris", "n": 1.0}'}
    made = {"id": "call_1", "type": "function", "function": function}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": None, "tool_calls": [made], "reasoning_content": "Hmm."},
        {"role": "tool", "tool_call_id": "call_1", "content": "12:00"},
    ]
    _, sent = await sent_for(ollama, {"messages": messages, "tools": CITY_TOOL, "tool_choice": "auto"})
    assert [message["role"] for message in sent["messages"]] == ["system", "user", "assistant", "tool"]
    assistant, result = sent["messages"][2:]
    expected = {"index": 0, "name": "get_time", "arguments": {"city": "Paris", "n": 1.0}}
    assert assistant["tool_calls"] == [{"id": "call_1", "function": expected}]
    assert assistant["content"] == ""
    assert assistant["thinking"] == "Hmm."
    assert "reasoning_content" not in assistant
    assert result["tool_name"] == "get_time"
    assert sent["tools"] == CITY_TOOL


async def test_tool_choice_none_sends_no_tools_and_a_forced_call_is_refused(ollama) -> None:
    _, sent = await sent_for(ollama, {"tools": CITY_TOOL, "tool_choice": "none"})
    assert "tools" not in sent
    ollama.engine.requests.clear()
    named = {"type": "function", "function": {"name": "get_time"}}
    for choice in ("required", named):
        error = await refusal_of(ollama, {"tools": CITY_TOOL, "tool_choice": choice})
        assert (error.code, error.param) == ("unsupported", "tool_choice")


async def test_text_parts_are_joined_and_images_come_out_of_their_data_urls(ollama) -> None:
    sight = exchange_of("ollama/0.32/show")["json"] | {"capabilities": ["completion", "vision"]}
    ollama.engine.routes["POST /api/show"] = whole(sight)
    await ollama.adapter.describe()
    parts = [
        {"type": "text", "text": "What"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}},
        {"type": "text", "text": "is it?"},
        {"type": "image_url", "image_url": "data:;base64,eHl6"},
    ]
    _, sent = await sent_for(ollama, {"messages": [{"role": "user", "content": parts}]})
    message = {"role": "user", "content": "What\nis it?", "images": ["aGVsbG8=", "eHl6"]}
    assert sent["messages"] == [message]


async def test_an_image_is_refused_before_it_reaches_a_model_that_would_ignore_it(ollama) -> None:
    await ollama.adapter.describe()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}
    error = await refusal_of(ollama, {"messages": [{"role": "user", "content": [image]}]})
    assert error.code == "unsupported"
    assert "smollm2" in error.message


async def test_an_image_behind_an_address_is_refused_with_the_way_out(ollama) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
    error = await refusal_of(ollama, {"messages": [{"role": "user", "content": [image]}]})
    assert error.status == 400
    assert "data URL" in error.message


@pytest.mark.parametrize(
    ("asked", "sent_format"),
    [
        ({"type": "json_object"}, "json"),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}, {"type": "object"}),
        ({"type": "text"}, None),
        (None, None),
    ],
)
async def test_response_format_becomes_format(ollama, asked: object, sent_format: object) -> None:
    _, sent = await sent_for(ollama, {"response_format": asked})
    assert sent.get("format") == sent_format
    assert "response_format" not in sent


@pytest.mark.parametrize(
    ("asked", "think"),
    [
        ({"reasoning_effort": "high"}, "high"),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning": {"effort": "low"}}, "low"),
        ({"think": True}, True),
        ({}, None),
    ],
)
async def test_reasoning_effort_becomes_think(ollama, asked: dict[str, Any], think: object) -> None:
    _, sent = await sent_for(ollama, asked)
    assert sent.get("think") == think


async def test_logprobs_stay_at_the_top(ollama) -> None:
    _, sent = await sent_for(ollama, {"logprobs": True, "top_logprobs": 2})
    assert (sent["logprobs"], sent["top_logprobs"]) == (True, 2)
    _, sent = await sent_for(ollama, {"logprobs": False, "top_logprobs": None})
    assert "logprobs" not in sent


async def test_a_completion_is_raw_and_one_with_a_suffix_leaves_it_to_the_template(ollama) -> None:
    path, sent = await sent_for(ollama, {"prompt": ["The sky is"], "logprobs": 2}, operation=Operation.COMPLETION)
    assert path == "/api/generate"
    assert (sent["prompt"], sent["raw"], sent["truncate"]) == ("The sky is", True, False)
    assert (sent["logprobs"], sent["top_logprobs"]) == (True, 2)
    _, sent = await sent_for(ollama, {"prompt": "def f(", "suffix": "return x"}, operation=Operation.COMPLETION)
    assert sent["suffix"] == "return x"
    assert "raw" not in sent


async def test_embeddings_are_never_cut_either(ollama) -> None:
    body = {"input": ["a" * 300, "b"], "dimensions": 64, "encoding_format": "base64"}
    path, sent = await sent_for(ollama, body, operation=Operation.EMBEDDINGS, prompt_tokens=100)
    assert path == "/api/embed"
    assert sent["input"] == body["input"]
    assert (sent["truncate"], sent["dimensions"]) == (False, 64)
    assert sent["options"] == {"num_ctx": 4096}
    assert not {"stream", "encoding_format"} & sent.keys()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 2}, "n"),
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"grammar": "root ::= x"}, "grammar"),
    ],
)
async def test_what_ollama_would_ignore_is_refused_and_may_be_asked_for_elsewhere(ollama, body, param: str) -> None:
    error = await refusal_of(ollama, body)
    assert (error.status, error.param, error.elsewhere) == (400, param, True)


async def test_the_usual_values_of_such_fields_are_no_obstacle(ollama) -> None:
    _, sent = await sent_for(ollama, {"n": 1, "logit_bias": {}, "echo": False, "functions": None})
    assert not {"n", "echo"} & sent.keys()


@pytest.mark.parametrize(
    ("body", "given"),
    [
        ({"messages": []}, {}),
        ({"messages": [{"role": "user", "content": 5}]}, {}),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, {}),
        ({"messages": "x"}, {}),
        ({"stop": 5}, {}),
        ({"response_format": {"type": "yaml"}}, {}),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, {}),
        ({"response_format": {"type": "json_schema", "json_schema": None}}, {}),
        ({"options": {"num_ctx": "big"}}, {}),
        ({"prompt": ["a", "b"]}, {"operation": Operation.COMPLETION}),
        ({"prompt": [1, 2, 3]}, {"operation": Operation.COMPLETION}),
        ({"prompt": ""}, {"operation": Operation.COMPLETION}),
        ({"input": [1, 2]}, {"operation": Operation.EMBEDDINGS}),
    ],
)
async def test_a_wrong_request_is_a_400_that_names_the_field(ollama, body, given) -> None:
    error = await refusal_of(ollama, body, **given)
    assert error.status == 400
    assert error.param in {"messages", "stop", "response_format", "options.num_ctx", "prompt", "input"}


async def test_broken_tool_arguments_say_where_they_are(ollama) -> None:
    made = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": '}}
    error = await refusal_of(ollama, {"messages": [{"role": "assistant", "tool_calls": [made]}]})
    assert "messages[0].tool_calls[0].function.arguments" in error.message


async def test_our_own_host_and_key_are_sent_never_the_clients_headers(ollama) -> None:
    adapter = OllamaAdapter(Endpoint("here", ollama.engine.url, api_key="engine-key"))
    ollama.engine.always(DONE)
    answer = await adapter.send(call(headers=(("host", "evil.example"), ("authorization", "Bearer client-key"))))
    await read_all(answer)
    sent = ollama.engine.requests[0].headers
    assert sent["host"] == f"127.0.0.1:{ollama.engine.port}"
    assert sent["authorization"] == "Bearer engine-key"
    await adapter.aclose()
