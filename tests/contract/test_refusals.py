"""What an engine refuses becomes the right error: wrong request, busy, loading, broken, each by its meaning."""

from __future__ import annotations

from typing import Any

import pytest
from engines import scripts
from engines.subject import Subject, read_all

from adapters.base import Endpoint
from adapters.errors import Broken, Busy, EngineError, Loading, Rejected, TimedOut, Unreachable
from adapters.registry import create
from policies.types import Operation

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wrong", [{"messages": "x"}, {"temperature": "hot"}, {"max_tokens": "many"}])
async def test_a_wrong_request_is_rejected_and_nobody_elses_fault(
    real: Subject, wrong: dict[str, Any], stream: bool
) -> None:
    with pytest.raises(Rejected) as caught:
        await read_all(await real.adapter.send(real.call({**HELLO, **wrong}, stream=stream)))
    assert caught.value.status in (400, 422)
    assert caught.value.message
    assert not caught.value.elsewhere
    assert not caught.value.counts_for_breaker
    assert caught.value.engine == real.adapter.endpoint.name


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_does_not_fit_is_never_cut(real: Subject, stream: bool) -> None:
    context = (await real.model()).context
    if context is None:
        pytest.skip("this engine does not tell its context")
    words = "word " * (context + 200)
    with pytest.raises(Rejected) as caught:
        await read_all(
            await real.adapter.send(
                real.call({**HELLO, "messages": [{"role": "user", "content": words}]}, stream=stream)
            )
        )
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.elsewhere
    assert str(context) in caught.value.message


LOADING = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
ANSWERS: list[tuple[Any, type[EngineError], str]] = [
    (scripts.status(429, headers={"retry-after": "7"}), Busy, ""),
    (scripts.status(408), Busy, ""),
    (scripts.status(503, headers={"retry-after": "7"}), Busy, ""),
    (
        scripts.status(503, LOADING),
        Loading,
        "",
    ),
    (scripts.status(500, {"error": "out of memory"}), Broken, "out of memory"),
    (scripts.text("<html>Bad Gateway</html>", 502), Broken, "502"),
    (scripts.text("", 500), Broken, "500"),
    (scripts.status(401, {"error": {"message": "Incorrect API key provided: sk-engine"}}), Broken, "credentials"),
    (scripts.status(400, {"error": {"message": "bad", "param": "top_p", "type": "x", "code": "c"}}), Rejected, "bad"),
    (scripts.status(422, {"detail": [{"loc": ["body", "n"], "msg": "not an int"}]}), Rejected, "not an int"),
    (scripts.status(200, {"error": {"message": "it died", "code": 500}}), Broken, "it died"),
    (scripts.text("", 204), Broken, "204"),
    (scripts.drop(), Broken, "closed"),
    (scripts.drop(b"HTTP/1.1 200 O"), Broken, "closed"),
    (scripts.drop(b"SSH-2.0-OpenSSH\r\n"), Broken, ""),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", range(len(ANSWERS)))
async def test_each_refusal_is_what_it_means(played: Subject, case: int, stream: bool) -> None:
    script, kind, words = ANSWERS[case]
    assert played.scripted is not None
    played.scripted.always(script)
    with pytest.raises(EngineError) as caught:
        await read_all(await played.adapter.send(played.call(HELLO, stream=stream)))
    assert type(caught.value) is kind
    assert words in caught.value.message
    assert caught.value.engine == played.adapter.endpoint.name
    if kind is Busy and case != 1:
        assert isinstance(caught.value, Busy)
        assert caught.value.retry_after_s == 7
    assert len(played.scripted.requests) == 1  # a refusal is not asked for twice


async def test_a_model_that_is_gone_may_be_elsewhere(played: Subject) -> None:
    assert played.scripted is not None
    played.scripted.always(scripts.status(404, {"error": {"message": "The model `m` does not exist.", "code": 404}}))
    with pytest.raises(Rejected) as caught:
        await played.adapter.send(played.call(HELLO))
    assert caught.value.elsewhere
    assert caught.value.code == "model_not_found"


async def test_a_path_that_is_not_there_is_a_capability_that_is_not_there(played: Subject) -> None:
    assert played.scripted is not None
    played.scripted.always(scripts.text("Not Found", 404))
    with pytest.raises(Rejected) as caught:
        await played.adapter.send(played.call({"input": "x"}, Operation.EMBEDDINGS))
    assert caught.value.elsewhere
    assert caught.value.code == "unsupported"


# Endpoints of its own: a key, short limits


def another(subject: Subject, **settings: Any) -> Subject:
    """The same scripted engine behind an adapter with other settings."""
    assert subject.scripted is not None
    kind = subject.adapter.kind
    adapter = create(kind, Endpoint(f"{kind}-2", subject.scripted.url, **settings))
    return Subject(adapter, subject.engine_model, subject.scripted)


async def test_only_our_key_and_the_calls_headers_go_upstream(played: Subject) -> None:
    keyed = another(played, api_key="sk-engine-key")
    call = keyed.call(HELLO, headers=(("x-request-id", "r1"), ("authorization", "Bearer sk-client"), ("host", "evil")))
    await read_all(await keyed.adapter.send(call))
    assert keyed.scripted is not None
    headers = keyed.scripted.requests[-1].headers
    assert headers["authorization"] == "Bearer sk-engine-key"
    assert headers["x-request-id"] == "r1"
    assert headers["host"] == f"127.0.0.1:{keyed.scripted.port}"
    await keyed.adapter.aclose()


async def test_our_key_is_in_no_error(played: Subject) -> None:
    keyed = another(played, api_key="sk-engine-key")
    assert keyed.scripted is not None
    for code in (400, 401, 404, 429, 500, 503):
        keyed.scripted.next(scripts.status(code, {"error": {"message": "no: sk-engine-key", "param": "sk-engine-key"}}))
        with pytest.raises(EngineError) as caught:
            await keyed.adapter.send(keyed.call(HELLO))
        assert "sk-engine-key" not in str(vars(caught.value))
    await keyed.adapter.aclose()


async def test_the_operators_options_are_added_where_the_client_is_silent(played: Subject) -> None:
    if played.adapter.kind == "ollama":
        pytest.skip("its options have a place of their own in its native request")
    tuned = another(played, options={"top_k": 7, "temperature": 0.1})
    await read_all(await tuned.adapter.send(tuned.call({**HELLO, "temperature": 0.9})))
    assert tuned.scripted is not None
    sent = tuned.scripted.requests[-1].json
    assert (sent["top_k"], sent["temperature"]) == (7, 0.9)
    await tuned.adapter.aclose()


@pytest.mark.parametrize("script", [scripts.hang(), scripts.silence()], ids=["no head", "no byte"])
@pytest.mark.parametrize("stream", [False, True])
async def test_silence_before_the_first_byte_has_a_limit(played: Subject, script: Any, stream: bool) -> None:
    hasty = another(played, first_byte_timeout_s=0.2)
    assert hasty.scripted is not None
    hasty.scripted.always(script)
    with pytest.raises(TimedOut):
        await read_all(await hasty.adapter.send(hasty.call(HELLO, stream=stream)))
    await (await hasty.scripted.received(0)).left.wait()
    await hasty.adapter.aclose()


async def test_nobody_at_home_is_unreachable(played: Subject) -> None:
    assert played.scripted is not None
    played.scripted.stop()
    for ask in (played.adapter.describe(), played.adapter.load(), played.adapter.send(played.call(HELLO))):
        with pytest.raises(Unreachable):
            await ask
