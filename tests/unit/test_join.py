"""Stream events joined into the one body of a client that does not stream."""

from __future__ import annotations

import json
from typing import Any

from adapters.join import Join
from policies.types import Operation

HEAD = {"id": "c1", "object": "chat.completion.chunk", "created": 5, "model": "m", "system_fingerprint": "fp"}


def chat(*deltas: dict[str, Any], index: int = 0) -> list[dict[str, Any]]:
    return [{**HEAD, "choices": [{"index": index, "delta": delta, "finish_reason": None}]} for delta in deltas]


def finish(reason: str, index: int = 0, **more: Any) -> dict[str, Any]:
    return {**HEAD, "choices": [{"index": index, "delta": {}, "finish_reason": reason, **more}]}


def join(chunks: list[dict[str, Any]], operation: Operation = Operation.CHAT) -> dict[str, Any]:
    joined = Join(operation)
    for chunk in chunks:
        joined.add(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    return joined.body()


def message(*deltas: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = join([*chat(*deltas), finish("stop")])["choices"][0]["message"]
    return found


def test_text_is_concatenated_and_the_head_kept() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    last = {**HEAD, "choices": [], "usage": usage, "timings": {"prompt_ms": 1.5}, "vendor": {"x": 1}}
    body = join(
        [*chat({"role": "assistant", "content": ""}, {"content": "Hel"}, {"content": "lo"}), finish("stop"), last]
    )
    assert body == {
        **HEAD,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}],
        "usage": usage,
        "timings": {"prompt_ms": 1.5},
        "vendor": {"x": 1},
    }


def test_several_choices_stay_apart_and_in_order() -> None:
    chunks = [*chat({"content": "b"}, index=1), *chat({"content": "a"}), *chat({"content": "B"}, index=1)]
    body = join([*chunks, finish("length", 1), finish("stop")])
    assert [(c["index"], c["message"]["content"], c["finish_reason"]) for c in body["choices"]] == [
        (0, "a", "stop"),
        (1, "bB", "length"),
    ]


def test_reasoning_and_refusal_are_concatenated_each_for_itself() -> None:
    assert message({"reasoning_content": "be"}, {"reasoning_content": "cause", "content": "x"}, {"refusal": "no"}) == {
        "role": "assistant",
        "content": "x",
        "reasoning_content": "because",
        "refusal": "no",
    }


def test_pieces_of_tool_calls_are_put_together_by_index() -> None:
    found = message(
        {"role": "assistant", "content": ""},
        {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"x"'}}]},
        {"tool_calls": [{"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]},
    )
    assert found["content"] is None
    assert found["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]


def test_a_name_or_id_that_is_repeated_with_each_piece_is_not_doubled() -> None:
    piece = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "1"}}
    found = message({"tool_calls": [piece]}, {"tool_calls": [piece]})
    assert found["tool_calls"] == [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "11"}}]


def test_whole_calls_without_an_index_are_told_apart_by_id() -> None:
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in "fg"]
    assert message({"tool_calls": calls[:1]}, {"tool_calls": calls[1:]})["tool_calls"] == calls


def test_text_beside_tool_calls_is_kept() -> None:
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert message({"content": "I look."}, {"tool_calls": [call]})["content"] == "I look."


def test_an_answer_of_no_text_is_an_empty_text() -> None:
    assert message({"role": "assistant", "content": None}) == {"role": "assistant", "content": ""}


def test_logprobs_are_appended() -> None:
    pieces = [{"content": [{"token": t, "logprob": -1.0}], "refusal": None} for t in ("a", "b")]
    chunks = [{**HEAD, "choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": p}]} for p in pieces]
    chunks[0]["choices"][0]["logprobs"] = pieces[0]
    body = join([*chunks, finish("stop", logprobs=None)])
    assert [t["token"] for t in body["choices"][0]["logprobs"]["content"]] == ["a", "b"]
    assert len(pieces[0]["content"]) == 1  # type: ignore[arg-type]  # what was added is not changed


def test_unknown_fields_follow_the_same_rules() -> None:
    found = message(
        {"poem": "ro", "notes": [1], "audio": {"id": "x", "data": "aa"}}, {"poem": "se", "notes": [2], "n": 1}
    )
    assert (found["poem"], found["notes"], found["audio"], found["n"]) == ("rose", [1, 2], {"id": "x", "data": "aa"}, 1)


def test_completions_join_text_and_their_own_form_of_logprobs() -> None:
    def piece(text: str, at: int) -> dict[str, Any]:
        logprobs = {"tokens": [text], "token_logprobs": [-0.5], "top_logprobs": [{text: -0.5}], "text_offset": [at]}
        choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": None}
        return {**HEAD, "object": "text_completion", "choices": [choice]}

    last = {**HEAD, "choices": [{"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}]}
    body = join([piece("Hel", 0), piece("lo", 3), last], Operation.COMPLETION)
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {
            "index": 0,
            "text": "Hello",
            "finish_reason": "length",
            "logprobs": {
                "tokens": ["Hel", "lo"],
                "token_logprobs": [-0.5, -0.5],
                "top_logprobs": [{"Hel": -0.5}, {"lo": -0.5}],
                "text_offset": [0, 3],
            },
        }
    ]
