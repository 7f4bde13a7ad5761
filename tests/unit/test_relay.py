"""A stream on its way to the client: what is changed, what is learned, and what counts as its end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.base import Outcome
from adapters.errors import Broken, Interrupted, Rejected
from adapters.relay import DONE, Relay, StreamQuirks
from adapters.sse import event_data, split_events

SEPARATORS = [(",", ":"), (", ", ": ")]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def event(separators: tuple[str, str] = (",", ":"), model: str | None = "engine/m", **fields: Any) -> bytes:
    head = {"id": "c", "object": "chat.completion.chunk"} | ({"model": model} if model is not None else {})
    return b"data: " + json.dumps({**head, **fields}, separators=separators).encode() + b"\n\n"


def delta(content: str | None = None, finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    body = {**({"content": content} if content is not None else {}), **more}
    return {"choices": [{"index": index, "delta": body, "finish_reason": finish}]}


def usage(prompt: int, output: int, cached: int | None = None) -> dict[str, Any]:
    counts: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return counts | ({"prompt_tokens_details": {"cached_tokens": cached}} if cached is not None else {})


def relay(include_usage: bool = False, **options: Any) -> tuple[Relay, Outcome]:
    outcome = Outcome()
    return Relay("asked", outcome, Clock(), include_usage=include_usage, **options), outcome


def parsed(blob: bytes) -> list[Any]:
    return [json.loads(data) for one in split_events(blob) if (data := event_data(one)) not in (None, b"[DONE]")]


NULL = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}, "finish_reason": None}]}
ROLE = event(**delta("", role="assistant"))
WHOLE = [ROLE, event(**delta("Hel")), event(**delta("lo")), event(**delta(finish="stop"))]
USAGE = event(choices=[], usage=usage(7, 2, 3))


@pytest.mark.parametrize("separators", SEPARATORS)
@pytest.mark.parametrize("size", [1, 10, 100, 10_000])
def test_the_client_sees_the_name_that_it_asked_for_in_each_event(separators: tuple[str, str], size: int) -> None:
    stream = b"".join(event(separators, **delta(text)) for text in ["a", "b", "c"]) + DONE
    passing, outcome = relay()
    out = b"".join(passing.feed(stream[at : at + size]) for at in range(0, len(stream), size))
    assert [chunk["model"] for chunk in parsed(out)] == ["asked"] * 3
    assert out == stream.replace(b"engine/m", b"asked")
    assert outcome.output_chunks == 3
    assert outcome.whole


@pytest.mark.parametrize("size", [1, 300, 1000, 100_000])
def test_a_stream_means_the_same_however_it_is_cut(size: int) -> None:
    pieces = [b": hello\n\n", ROLE, *(event(**delta(f"w{number}")) for number in range(20))]
    pieces += [event(**delta("x"), timings={"predicted_n": 21}), event(**delta("last"))]
    stream = b"".join([*pieces, event(**delta(finish="stop")), USAGE, DONE])
    passing, outcome = relay(include_usage=True)
    out = b"".join(passing.feed(stream[at : at + size]) for at in range(0, len(stream), size))
    texts = [chunk["choices"][0]["delta"].get("content") for chunk in parsed(out) if chunk["choices"]]
    assert texts == ["", *(f"w{number}" for number in range(20)), "x", "last", None]
    assert {chunk["model"] for chunk in parsed(out)} == {"asked"}
    assert (outcome.output_chunks, outcome.finish_reason, outcome.prompt_tokens) == (22, "stop", 7)
    assert out.endswith(DONE)
    assert outcome.whole


@pytest.mark.parametrize(
    "name", ['wei"rd', "back\\slash", "C:\\models\\x.gguf", "modèle", "", "a/b:c@d"], ids=lambda name: repr(name)
)
def test_any_engine_name_is_replaced(name: str) -> None:
    passing, _ = relay()
    out = passing.feed(event(model=name, **delta("a")) + event(model=name, **delta("b")))
    assert [chunk["model"] for chunk in parsed(out)] == ["asked", "asked"]


def test_an_oddly_spaced_name_is_replaced_too() -> None:
    passing, _ = relay()
    out = passing.feed(b'data: {"model" : "engine/m", "choices":[{"index":0,"delta":{"content":"a"}}]}\n\n')
    assert parsed(out)[0]["model"] == "asked"


def test_a_name_that_changes_on_the_way_is_replaced_every_time() -> None:
    passing, _ = relay()
    blobs = [event(model=name, **delta("x")) for name in ["", "m", "m", "n", "n"]]
    assert {chunk["model"] for blob in blobs for chunk in parsed(passing.feed(blob))} == {"asked"}


def test_events_without_a_name_pass_as_they_are() -> None:
    passing, _ = relay()
    blob = event(**delta("a")) + event(model=None, **delta("b")) + event(**delta("c"))
    assert passing.feed(blob) == blob.replace(b"engine/m", b"asked")


@pytest.mark.parametrize(
    "text",
    [
        '"model":"engine/m"',
        '"usage":{"prompt_tokens":1}',
        '"error":{"message":"no"}',
        '"finish_reason":"stop"',
        '"prompt_progress":{"total":1,"processed":1}',
        '"timings":{"prompt_ms":1}',
        "data: [DONE]\n\n",
        "[DONE]",
        ": keepalive 3/4\n\n",
        '{"choices":[{"delta":{"content":"x"}}]}',
        "\r\n\r\n",
    ],
)
@pytest.mark.parametrize("separators", SEPARATORS)
def test_what_the_model_writes_is_only_text(text: str, separators: tuple[str, str]) -> None:
    passing, outcome = relay()
    out = passing.feed(event(separators, **delta("first")))
    out += passing.feed(event(separators, **delta(text)))
    assert [chunk["choices"][0]["delta"]["content"] for chunk in parsed(out)] == ["first", text]
    assert (outcome.whole, outcome.finish_reason, outcome.prompt_tokens, outcome.prefill_done) == (
        False,
        None,
        None,
        None,
    )
    with pytest.raises(Interrupted):
        passing.end()


@pytest.mark.parametrize("word", ["error", "usage", "timings", "prompt_progress", "model", "finish_reason"])
def test_a_token_that_is_a_mark_word_is_only_text(word: str) -> None:
    passing, _ = relay()
    blob = event(**delta("x")) + event(**delta(word))
    assert passing.feed(blob) == blob.replace(b"engine/m", b"asked")


# Usage


@pytest.mark.parametrize("include_usage", [False, True])
def test_usage_is_always_learned_and_shown_to_those_who_asked(include_usage: bool) -> None:
    passing, outcome = relay(include_usage)
    out = passing.feed(b"".join([*WHOLE, USAGE, DONE]))
    assert (outcome.prompt_tokens, outcome.output_tokens, outcome.cached_tokens) == (7, 2, 3)
    last = parsed(out)[-1]
    assert ("usage" in last) is include_usage
    assert len(parsed(out)) == 4 + include_usage
    if include_usage:
        assert last == {**parsed(USAGE)[0], "model": "asked"}
    assert out.endswith(DONE)


@pytest.mark.parametrize("include_usage", [False, True])
def test_usage_in_the_last_event_with_output_is_taken_out_alone(include_usage: bool) -> None:
    passing, outcome = relay(include_usage)
    last = event(**delta("lo", "stop"), usage=usage(7, 2))
    out = parsed(passing.feed(ROLE + event(**delta("Hel")) + last + DONE))
    assert out[-1]["choices"] == parsed(last)[0]["choices"]
    assert ("usage" in out[-1]) is include_usage
    assert out[-1]["model"] == "asked"
    assert outcome.output_tokens == 2


def test_a_usage_of_null_is_none() -> None:
    passing, outcome = relay()
    passing.feed(event(**delta("a"), usage=None) + event(**delta("b"), usage=None))
    assert outcome.prompt_tokens is None
    assert outcome.output_chunks == 2


def test_usages_of_several_choices_become_one_at_the_end() -> None:
    passing, outcome = relay(True, choices=2, quirks=StreamQuirks(usage_per_choice=True))
    stream = [
        event(**delta("a", index=1)),
        event(**delta(finish="stop", index=1)),
        event(choices=[], usage=usage(7, 1)),
    ]
    stream += [event(**delta("b")), event(**delta(finish="length")), event(choices=[], usage=usage(7, 4)), DONE]
    out = parsed(b"".join(passing.feed(blob) for blob in stream))
    assert [bool(chunk["choices"]) for chunk in out] == [True, True, True, True, False]
    assert out[-1]["usage"] == usage(7, 5)
    assert outcome.output_tokens == 5


def test_a_usage_beside_each_choice_becomes_one_at_the_end_too() -> None:
    passing, _ = relay(True, choices=2, quirks=StreamQuirks(usage_per_choice=True))
    stream = [event(**delta("a", index=i)) for i in (0, 1)]
    stream += [event(**delta("", "stop", index=i), usage=usage(7, 2), timings={"prompt_ms": 5}) for i in (0, 1)]
    out = parsed(b"".join(passing.feed(blob) for blob in [*stream, DONE]))
    assert ["usage" in chunk for chunk in out] == [False, False, False, False, True]
    assert out[2]["timings"] == {"prompt_ms": 5}
    assert (out[-1]["choices"], out[-1]["usage"]) == ([], usage(7, 4))


# Times and counts


@pytest.mark.parametrize(
    "first",
    [
        delta("x"),
        delta(reasoning_content="x"),
        delta(reasoning="x"),
        delta(refusal="x"),
        delta(tool_calls=[{"index": 0, "id": "1", "function": {"name": "f", "arguments": ""}}]),
        {"choices": [{"index": 0, "text": "x", "finish_reason": None}]},
    ],
)
@pytest.mark.parametrize("separators", SEPARATORS)
def test_the_first_token_is_the_first_event_with_output(first: dict[str, Any], separators: tuple[str, str]) -> None:
    passing, outcome = relay()
    passing.feed(event(separators, **delta("", role="assistant")))
    passing.feed(event(separators, **NULL))
    assert outcome.first_token_at is None
    passing.feed(event(separators, **first))
    assert outcome.first_token_at == outcome.last_token_at == 1.0
    assert outcome.output_chunks == 1
    passing.feed(event(separators, **first) * 3)
    assert (outcome.first_token_at, outcome.last_token_at, outcome.output_chunks) == (1.0, 2.0, 4)


def test_the_engines_own_timings_are_read() -> None:
    passing, outcome = relay()
    timings = {"cache_n": 4, "prompt_n": 6, "prompt_ms": 1500, "predicted_n": 2, "predicted_ms": 250.5}
    passing.feed(b"".join([ROLE, event(**delta("a")), event(**delta(finish="length"), timings=timings), DONE]))
    assert (outcome.prefill_s, outcome.decode_s, outcome.cached_tokens, outcome.prompt_tokens) == (1.5, 0.2505, 4, 10)
    assert outcome.finish_reason == "length"


def test_prompt_progress_is_a_sign_of_life_and_nothing_for_the_client() -> None:
    passing, outcome = relay()
    progress = {"prompt_progress": {"total": 300, "cache": 44, "processed": 172, "time_ms": 900}}
    assert passing.feed(event(**NULL, **progress)) == b""
    assert (outcome.prefill_done, outcome.prefill_all) == (172, 300)
    assert outcome.first_token_at is None


def test_comments_are_swallowed_and_progress_in_them_is_read() -> None:
    passing, outcome = relay()
    assert passing.feed(b": keepalive 175/176\n\n: ping\n\n") == b""
    assert (outcome.prefill_done, outcome.prefill_all) == (175, 176)
    assert passing.feed(event(**delta("a")) + b":\n\n" + event(**delta("b"))).count(b"\n\n") == 2


# Odd but legal framing


def test_odd_framing_reaches_the_client_as_plain_events() -> None:
    passing, outcome = relay()
    one = json.dumps({"model": "engine/m", **delta("ä")}, indent=1).encode()
    several_lines = b"event: chunk\r\n" + b"".join(b"data:" + line + b"\r\n" for line in one.split(b"\n")) + b"\r\n"
    stream = b"\xef\xbb\xbf: hi\r\n\r\n" + several_lines * 2 + b"data:[DONE]"
    out = b"".join(passing.feed(stream[at : at + 3]) for at in range(0, len(stream), 3)) + passing.end()
    assert out.endswith(DONE)
    assert [(chunk["model"], chunk["choices"]) for chunk in parsed(out)] == [("asked", delta("ä")["choices"])] * 2
    assert outcome.whole


# Ends


def test_done_makes_it_whole_and_nothing_follows() -> None:
    passing, outcome = relay()
    out = passing.feed(b"".join([*WHOLE, DONE]))
    assert outcome.whole
    assert passing.done
    assert out.endswith(DONE)
    assert passing.feed(event(**delta("more"))) == b""
    assert passing.end() == b""


def test_an_end_without_done_is_whole_after_a_finish_reason_and_the_client_gets_its_done() -> None:
    passing, outcome = relay(True)
    passing.feed(b"".join([*WHOLE, USAGE]))
    assert not outcome.whole
    rest = passing.end()
    assert outcome.whole
    assert parsed(rest)[0]["usage"]["prompt_tokens"] == 7
    assert rest.endswith(DONE)


def test_an_end_without_finish_reason_is_an_interruption() -> None:
    passing, outcome = relay()
    passing.feed(b"".join(WHOLE[:3]))
    with pytest.raises(Interrupted):
        passing.end()
    assert not outcome.whole


def test_every_choice_has_to_finish() -> None:
    passing, outcome = relay(choices=2)
    passing.feed(event(**delta("a")) + event(**delta("b", index=1)) + event(**delta(finish="stop", index=1)))
    with pytest.raises(Interrupted):
        passing.end()
    passing.feed(event(**delta(finish="stop")))
    passing.end()
    assert outcome.whole


def test_an_end_in_the_middle_of_an_event_is_an_interruption() -> None:
    passing, outcome = relay()
    passing.feed(b"".join(WHOLE[:2]) + b'data: {"choices":[{"delta":{"content":"half')
    with pytest.raises(Interrupted):
        passing.end()
    assert not outcome.whole


def test_a_stream_of_nothing_is_broken_so_that_another_engine_may_be_asked() -> None:
    passing, _ = relay()
    with pytest.raises(Broken):
        passing.end()


# Errors inside of a 200


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "cuda out of memory", "code": 500}, Broken),
        ({"message": "runner died"}, Broken),
        ("runner died", Broken),
        ({"message": "request (9 tokens) exceeds the available context size (4 tokens)", "code": 400}, Rejected),
    ],
)
def test_an_error_before_any_output_is_what_it_says(error: Any, kind: type[Exception]) -> None:
    passing, _ = relay()
    with pytest.raises(kind):
        passing.feed(b"data: " + json.dumps({"error": error}).encode() + b"\n\n")


def test_an_error_after_output_interrupts() -> None:
    passing, outcome = relay()
    passing.feed(ROLE + event(**delta("Hel")))
    with pytest.raises(Interrupted, match="out of memory"):
        passing.feed(event(error={"message": "out of memory", "code": 400}))
    assert not outcome.whole


def test_an_error_field_instead_of_data_is_an_error_too() -> None:
    passing, _ = relay()
    with pytest.raises(Broken, match="slot unavailable"):
        passing.feed(b'error: {"code":500,"message":"slot unavailable","type":"server_error"}\n\n')


def test_an_error_of_null_is_none() -> None:
    passing, _ = relay()
    assert parsed(passing.feed(event(**delta("a"), error=None)))[0]["error"] is None


def test_nonsense_is_not_forwarded() -> None:
    passing, _ = relay()
    with pytest.raises(Broken):
        passing.feed(b"data: <html>\n\n")
    passing, _ = relay()
    passing.feed(ROLE)
    with pytest.raises(Interrupted):
        passing.feed(b"data: 17\n\n")


def test_a_key_never_shows_in_an_error() -> None:
    passing, _ = relay(secret="sk-very-secret")
    with pytest.raises(Broken) as caught:
        passing.feed(b'data: {"error":{"message":"bad key sk-very-secret"}}\n\n')
    assert "sk-very-secret" not in caught.value.message


def test_what_came_before_an_error_in_the_same_piece_reaches_the_client_first() -> None:
    passing, _ = relay()
    passing.feed(ROLE)
    failure = b'data: {"error":{"message":"out of memory"}}\n\n'
    assert (
        parsed(passing.feed(event(**delta("a")) + failure + event(**delta("b"))))[-1]["choices"]
        == delta("a")["choices"]
    )
    assert isinstance(passing.failure, Interrupted)
    with pytest.raises(Interrupted):
        passing.feed(event(**delta("c")))
    with pytest.raises(Interrupted):
        passing.end()


def test_an_error_in_the_very_first_piece_leaves_the_client_untouched() -> None:
    passing, _ = relay()
    with pytest.raises(Broken):
        passing.feed(ROLE + event(**delta("a")) + b'data: {"error":{"message":"out of memory"}}\n\n')


def test_timings_beside_each_token_are_read_as_they_come() -> None:
    passing, outcome = relay()
    passing.feed(event(**delta("a"), timings={"predicted_ms": 10}))
    passing.feed(event(**delta("b"), timings={"predicted_ms": 20}))
    assert (outcome.decode_s, outcome.output_chunks) == (0.02, 2)


def test_progress_of_a_second_choice_is_no_event_either() -> None:
    passing, outcome = relay(choices=2)
    passing.feed(event(**delta("a", index=1)))
    assert passing.feed(event(**NULL, prompt_progress={"total": 9, "processed": 9})) == b""
    assert (outcome.prefill_done, outcome.output_chunks) == (9, 1)
