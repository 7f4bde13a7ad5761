"""How a stream ends: whole, cut, failed or stalled; half an answer never passes for a whole one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from engines import scripts
from engines.signals import Gate
from engines.subject import ASKED_NAME, Subject, events_of, read_all, text_of

from adapters.base import Endpoint
from adapters.errors import Broken, EngineError, Interrupted
from adapters.registry import create

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
CUTS: dict[str, Callable[[Gate], scripts.Script]] = {
    "connection dropped": lambda gate: scripts.cut(after=2, gate=gate),
    "dropped inside an event": lambda gate: scripts.cut(after=2, tail=b'data: {"choi', gate=gate),
    "ended properly, unfinished": lambda gate: scripts.cut(after=2, clean=True, gate=gate),
    "ended properly inside an event": lambda gate: scripts.cut(after=2, clean=True, tail=b'data: {"choi', gate=gate),
    "an error event": lambda gate: scripts.fail(after=2, gate=gate),
}
EARLY = {
    "dropped after the head": scripts.cut(after=0),
    "ended after the head": scripts.cut(after=0, clean=True),
    "an error event": scripts.fail(after=0),
}


async def until_error(subject: Subject, stream: bool, gate: Gate | None = None) -> tuple[bytes, EngineError, Any]:
    """Read until it fails; the ``gate`` opens once two tokens were seen. What was read, the error, the answer."""
    answer = await subject.adapter.send(subject.call(HELLO, stream=stream))
    got = b""
    try:
        while (part := await answer.read()) is not None:
            got += part
            if gate is not None and answer.outcome.output_chunks == 2:
                gate.open()
    except EngineError as error:
        return got, error, answer
    raise AssertionError("the answer passed for a whole one")


@pytest.mark.parametrize("name", CUTS)
async def test_an_answer_cut_in_the_middle_is_interrupted_and_never_done(played: Subject, name: str) -> None:
    assert played.scripted is not None
    gate = Gate()
    played.scripted.always(CUTS[name](gate))
    got, error, answer = await until_error(played, stream=True, gate=gate)
    assert type(error) is Interrupted
    assert not error.retryable
    assert text_of(events_of(got)) == "Hello"
    assert b"[DONE]" not in got
    assert not answer.outcome.whole
    assert answer.outcome.output_chunks == 2


@pytest.mark.parametrize("name", EARLY)
async def test_an_answer_cut_before_its_first_byte_may_be_asked_of_another(played: Subject, name: str) -> None:
    assert played.scripted is not None
    played.scripted.always(EARLY[name])
    got, error, _ = await until_error(played, stream=True)
    assert got == b""
    assert type(error) is Broken
    assert error.retryable


@pytest.mark.parametrize("name", [*CUTS])
async def test_a_cut_that_the_client_has_seen_nothing_of_may_be_asked_of_another(played: Subject, name: str) -> None:
    if not played.adapter.always_stream:
        pytest.skip("this engine is asked for one body when the client wants one")
    assert played.scripted is not None
    gate = Gate()
    played.scripted.always(CUTS[name](gate))
    got, error, _ = await until_error(played, stream=False, gate=gate)
    assert got == b""
    assert type(error) is Broken
    assert error.engine == played.adapter.endpoint.name


async def test_a_missing_done_is_made_up_for_after_a_finish(played: Subject) -> None:
    assert played.scripted is not None
    played.scripted.always(scripts.chat(done=False))
    events, answer = await played.stream(HELLO)
    assert events[-1] == "[DONE]"
    assert text_of(events) == "Hello!"
    assert answer.outcome.whole


async def test_a_stall_in_the_middle_has_a_limit(played: Subject) -> None:
    assert played.scripted is not None
    kind = played.adapter.kind
    hasty = Subject(
        create(kind, Endpoint(kind, played.scripted.url, silence_timeout_s=0.2)), played.engine_model, played.scripted
    )
    played.scripted.always(scripts.stall(after=2))
    got, error, _ = await until_error(hasty, stream=True)
    assert type(error) is Interrupted
    assert text_of(events_of(got)) == "Hello"
    await (await played.scripted.received(0)).left.wait()
    await hasty.adapter.aclose()


async def test_each_event_is_passed_on_when_it_comes(played: Subject) -> None:
    assert played.scripted is not None
    gate = Gate()
    played.scripted.always(scripts.chat(["a", "b", "c"], gate=gate))
    gate.release()  # a non-streamed answer waits for one, too; the head needs none
    answer = await played.adapter.send(played.call(HELLO, stream=True))
    seen = await answer.read()
    for expected in "abc":
        gate.release()
        seen = await answer.read()
        assert seen is not None
        assert text_of(events_of(seen)) == expected
    gate.open()
    await read_all(answer)
    assert answer.outcome.whole


async def test_progress_of_the_prompt_is_a_sign_of_life(played: Subject) -> None:
    if played.adapter.kind not in ("llamacpp", "mlx"):
        pytest.skip("this engine reports no progress")
    assert played.scripted is not None
    gate = Gate()
    played.scripted.always(scripts.chat(progress=[(10, 30), (20, 30)], gate=gate))
    answer = await played.adapter.send(played.call(HELLO, stream=True))
    for done in (10, 20):
        gate.release()
        assert await answer.read() == b""
        assert (answer.outcome.prefill_done, answer.outcome.prefill_all) == (done, 30)
    gate.open()
    assert text_of(events_of(await read_all(answer))) == "Hello!"


@pytest.mark.parametrize("stream", [False, True])
async def test_odd_but_legal_events_are_understood(played: Subject, stream: bool) -> None:
    if played.adapter.kind == "ollama":
        pytest.skip("its native protocol has no events")
    if not stream and not played.adapter.always_stream:
        pytest.skip("this engine is asked for one body when the client wants one")
    assert played.scripted is not None
    chunk = '{"id":"1","created":1,"model":"m","object":"chat.completion.chunk","choices":[{"index":0,%s}]}'
    role, first = chunk % '"delta":{"role":"assistant"}', chunk % '"delta":{"content":"Grüße "}'
    second, last = chunk % '"delta":{"content":"🙂"}', chunk % '"delta":{},"finish_reason":"stop"'
    text = (
        "\ufeff: a comment\r\n\r\n"
        f"data:{role}\r\n\r\n"
        f"event: message\r\nid: 5\r\ndata: {first}\r\n\r\n"
        "data: {\r\n"
        f"data:   {second[1:]}\r\n\r\n"
        f"data: {last}\n\ndata: [DONE]"
    ).encode()
    played.scripted.always(scripts.pieces(*(text[at : at + 7] for at in range(0, len(text), 7))))
    if stream:
        events, answer = await played.stream(HELLO)
        assert text_of(events) == "Grüße 🙂"
        assert {event["model"] for event in events[:-1]} == {ASKED_NAME}
    else:
        body, answer = await played.whole(HELLO)
        assert body["choices"][0]["message"]["content"] == "Grüße 🙂"
        assert body["model"] == ASKED_NAME
    assert answer.outcome.whole
