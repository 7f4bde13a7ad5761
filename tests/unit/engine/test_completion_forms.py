"""What the engine tells becomes OpenAI's answers, streamed and whole."""

from __future__ import annotations

import base64
import struct
from typing import Any

import msgspec
from asking import chat, end, events, fields, language, piece

from engine import answers
from engine.answers import Answer
from engine.dialogue import message
from engine.errors import ContextExceeded, InvalidRequest, Overloaded
from engine.events import Delta, Done
from engine.protocol import Embedding, read_completion
from engine.request import Finish

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
SPOKEN = language()


def streamed(body: dict[str, Any], *told: tuple[int, Delta | Done]) -> list[Any]:
    answer, _ = chat({"stream": True, **body})
    out = answer.begin()
    for index, one in told:
        out += answer.take(index, one)
    return events(out)


def answered(body: dict[str, Any], *told: tuple[int, Delta | Done]) -> Any:
    answer, _ = chat(body)
    for index, one in told:
        assert answer.take(index, one) == b""
    assert answer.whole
    return msgspec.json.decode(answer.body())


def test_a_stream_names_its_role_once_and_ends_with_finish_usage_and_done() -> None:
    options = {"stream_options": {"include_usage": True}}
    role, first, second, last, usage, done = streamed(
        options, (0, piece(SPOKEN, "he")), (0, piece(SPOKEN, "llo")), (0, end())
    )
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [one["choices"][0]["delta"] for one in (first, second, last)] == [{"content": "he"}, {"content": "llo"}, {}]
    assert [one["choices"][0]["finish_reason"] for one in (role, first, second, last)] == [None, None, None, "stop"]
    assert last["timings"]["prefill_ms"] == 20.0
    assert "timings" not in second
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 11
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    assert done == "[DONE]"
    assert len({one["id"] for one in (role, first, last, usage)}) == 1
    assert len(streamed({}, (0, piece(SPOKEN, "x")), (0, end()))) == 4


def test_a_piece_without_text_is_no_event() -> None:
    assert len(streamed({}, (0, Delta("", (5,), ())), (0, end()))) == 3


def test_a_whole_answer_is_one_body() -> None:
    body = answered({}, (0, piece(SPOKEN, "hello")), (0, end(Finish.LENGTH)))
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello"},
            "logprobs": None,
            "finish_reason": "length",
        }
    ]
    assert body["usage"]["completion_tokens"] == 5
    assert body["timings"]["decode_ms"] == 300.0
    empty = answered({}, (0, end()))
    assert empty["choices"][0]["message"]["content"] == ""


def test_a_prompt_counts_once_for_all_its_choices() -> None:
    told = [(1, piece(SPOKEN, "b")), (0, piece(SPOKEN, "a")), (0, end(completion=3)), (1, end(completion=4))]
    body = answered({"n": 2}, *told)
    assert [choice["message"]["content"] for choice in body["choices"]] == ["a", "b"]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (6, 7)
    stream = streamed({"n": 2}, *told)
    ends = [one["choices"][0]["index"] for one in stream[:-1] if one["choices"][0]["finish_reason"]]
    assert ends == [0, 1]
    assert ["timings" in one for one in stream[:-1]].count(True) == 1


def test_reasoning_and_calls_come_apart_from_the_content() -> None:
    told = [(0, piece(SPOKEN, text)) for text in ("<thi", "nk>so", "</think>well ", CALL[:20], CALL[20:])]
    body = answered({"tools": [TOOL]}, *told, (0, end()))
    said = body["choices"][0]["message"]
    assert (said["reasoning_content"], said["content"]) == ("so", "well")
    assert said["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    stream = streamed({"tools": [TOOL]}, *told, (0, end()))
    joined = message(one["choices"][0]["delta"] for one in stream[1:-1])
    for call in (*joined["tool_calls"], *said["tool_calls"]):
        assert call.pop("id")
    assert joined == said


def test_an_answer_cut_within_a_call_was_not_ended_by_it() -> None:
    body = answered({"tools": [TOOL]}, (0, piece(SPOKEN, CALL[:35])), (0, end(Finish.LENGTH)))
    assert body["choices"][0]["finish_reason"] == "length"


def test_where_one_call_is_asked_for_the_second_ends_the_answer() -> None:
    answer, spoken = chat({"tools": [TOOL], "parallel_tool_calls": False})
    answer.take(0, piece(spoken, CALL))
    assert not answer.closed(0)
    answer.take(0, piece(spoken, CALL + CALL))
    assert answer.closed(0)
    answer.take(0, end(Finish.CANCELLED))
    choice = msgspec.json.decode(answer.body())["choices"][0]
    assert len(choice["message"]["tool_calls"]) == 1
    assert choice["finish_reason"] == "tool_calls"


def test_logprobs_come_with_the_text_of_their_tokens() -> None:
    told = [(0, piece(SPOKEN, "h", logprobs=True)), (0, piece(SPOKEN, "ü", logprobs=True)), (0, end())]
    body = answered({"logprobs": True, "top_logprobs": 1}, *told)
    entries = body["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == ["h", "�", "�"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == "hü"
    assert [len(entry["top_logprobs"]) for entry in entries] == [1, 1, 1]
    stream = streamed({"logprobs": True, "top_logprobs": 1}, *told)
    pieces = [one["choices"][0]["logprobs"] or {} for one in stream[:-1]]
    assert [entry for one in pieces for entry in one.get("content", ())] == entries


def test_a_hidden_token_has_no_entry() -> None:
    hidden = next(iter(SPOKEN.tokenizer.hidden))
    told = piece(SPOKEN, "h", logprobs=True)
    both = Delta("h", (*told.tokens, hidden), told.logprobs * 2)
    body = answered({"logprobs": True}, (0, both), (0, end()))
    assert [entry["token"] for entry in body["choices"][0]["logprobs"]["content"]] == ["h"]


def test_a_completion_has_its_own_form() -> None:
    asked = read_completion(fields({"prompt": ["ab", "cd"], "logprobs": 1}), SPOKEN)
    answer = Answer(asked, "small", SPOKEN.tokenizer)
    assert answer.begin() == b""
    for index, text in enumerate(("xy", "z")):
        answer.take(index, piece(SPOKEN, text, logprobs=True))
        answer.take(index, end(prompt=2, cached=0, completion=len(text)))
    body = msgspec.json.decode(answer.body())
    assert body["object"] == "text_completion"
    assert [choice["text"] for choice in body["choices"]] == ["xy", "z"]
    assert body["choices"][0]["logprobs"]["tokens"] == ["x", "y"]
    assert body["choices"][0]["logprobs"]["text_offset"] == [0, 1]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (4, 3)


def test_embeddings_have_length_one_in_either_form() -> None:
    told = [Done(Finish.STOP, end().usage, end().timings, embedding=(3.0, 4.0))]
    plain = msgspec.json.decode(answers.embeddings(Embedding(([1],)), "small", told))
    coded = msgspec.json.decode(answers.embeddings(Embedding(([1],), base64=True), "small", told))
    assert plain["data"][0]["embedding"] == [0.6, 0.8]
    values = struct.unpack("<2f", base64.b64decode(coded["data"][0]["embedding"]))
    assert [round(value, 6) for value in values] == [0.6, 0.8]
    assert plain["usage"] == {"prompt_tokens": 6, "total_tokens": 6}


def test_errors_say_what_is_wrong_in_openais_form() -> None:
    too_long = answers.error_body(ContextExceeded(9, 8))["error"]
    assert (too_long["code"], too_long["n_prompt_tokens"], too_long["n_ctx"]) == ("context_length_exceeded", 9, 8)
    assert answers.error_body(InvalidRequest("no", "stop"))["error"]["param"] == "stop"
    assert answers.error_body(Overloaded("full"))["error"]["type"] == "overloaded_error"
