from __future__ import annotations

import json

import pytest

from adapters.errors import Broken, Busy, EngineError, Interrupted, Loading, Rejected, TimedOut, Unreachable
from gateway.errors import ApiError, from_engine_error, no_deployment, no_such_model, retry_after, too_busy
from policies.types import Decision, Deployment, Precision, Rejection


def deployment(name: str) -> Deployment:
    return Deployment(name, "m", "llamacpp", name, "m.gguf", Precision.INT4)


def test_an_error_has_openais_form() -> None:
    error = ApiError(400, "'n' has to be 1 or more", param="n", code="bad_n")
    assert json.loads(error.encode()) == {
        "error": {"message": "'n' has to be 1 or more", "type": "invalid_request_error", "param": "n", "code": "bad_n"}
    }


def test_in_a_stream_it_is_one_whole_event() -> None:
    event = ApiError(502, "gone\nin two lines").event()
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 2


@pytest.mark.parametrize(
    ("status", "type_"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "invalid_request_error"),
        (413, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (503, "server_error"),
    ],
)
def test_the_type_follows_from_the_status(status: int, type_: str) -> None:
    assert ApiError(status, "x").type == type_


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (Busy("full", engine="e"), 429, "engine_busy"),
        (Loading("loads", engine="e"), 503, "model_loading"),
        (Unreachable("refused", engine="e"), 503, "engine_unreachable"),
        (Broken("nonsense", engine="e"), 502, "engine_failed"),
        (TimedOut("silent", engine="e"), 504, "engine_timed_out"),
        (Interrupted("cut", engine="e"), 502, "engine_interrupted"),
        (EngineError("odd", engine="e"), 502, "engine_failed"),
    ],
)
def test_each_fault_of_an_engine_has_its_own_status_and_names_the_engine(
    fault: EngineError, status: int, code: str
) -> None:
    error = from_engine_error(fault)
    assert (error.status, error.code) == (status, code)
    assert error.message == f"e: {fault.message}"


def test_a_request_that_an_engine_rejects_keeps_status_message_param_and_code() -> None:
    rejected = Rejected(
        "prompt too long", status=422, engine="e", type_="odd_error", param="messages", code="context_length_exceeded"
    )
    error = from_engine_error(rejected)
    assert (error.status, error.message, error.type, error.param, error.code) == (
        422,
        "prompt too long",
        "odd_error",
        "messages",
        "context_length_exceeded",
    )
    assert error.headers == ()


@pytest.mark.parametrize(("given", "told"), [(7.2, b"8"), (None, b"5"), (0.0, b"1")])
def test_busy_and_loading_say_when_to_come_back(given: float | None, told: bytes) -> None:
    for fault in (Busy("full", retry_after_s=given), Loading("loads", retry_after_s=given)):
        assert from_engine_error(fault).headers == ((b"retry-after", told),)


def test_retry_after_is_a_whole_number_of_seconds_and_never_zero() -> None:
    assert [retry_after(value) for value in (0, 0.2, 1, 1.01)] == [b"1", b"1", b"1", b"2"]


def test_our_own_limit_is_a_429_with_a_time() -> None:
    error = too_busy("all taken", 2.5)
    assert (error.status, error.type, error.headers) == (429, "rate_limit_error", ((b"retry-after", b"3"),))


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("smolm2", ["SmolLM2", "qwen3"], "Did you mean 'SmolLM2'?"),
        ("zzz", ["SmolLM2", "qwen3"], "There is 'SmolLM2' and 'qwen3'."),
        ("zzz", ["SmolLM2"], "There is only 'SmolLM2'."),
        ("zzz", [], "paceline doctor"),
        ("zzz", [f"model-number-{n}" for n in range(20)], "GET /v1/models lists all 20."),
    ],
)
def test_an_unknown_model_is_a_404_with_what_there_is(name: str, known: list[str], said: str) -> None:
    error = no_such_model(name, known)
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
    assert said in error.message


def test_a_huge_model_name_is_not_repeated() -> None:
    assert len(no_such_model("x" * 1_000_000, ["qwen3"]).message) < 400


def test_a_request_that_nobody_can_serve_lists_each_deployment_and_why() -> None:
    rejected = (
        Rejection(deployment("a"), "context", "its context is 2048, the prompt needs 5000"),
        Rejection(deployment("b"), "capability", "cannot call tools"),
    )
    error = no_deployment("m", Decision((), rejected, "none"), frozenset({"down"}))
    assert (error.status, error.code) == (400, "no_deployment")
    for rejection in rejected:
        assert f"{rejection.deployment.id}: {rejection.reason}" in error.message


def test_one_that_somebody_could_serve_later_is_a_503_that_may_be_sent_again() -> None:
    rejected = (
        Rejection(deployment("a"), "context", "its context is 2048, the prompt needs 5000"),
        Rejection(deployment("b"), "down", "is down: connection refused"),
    )
    error = no_deployment("m", Decision((), rejected, "none"), frozenset({"down"}))
    assert (error.status, error.code) == (503, "no_deployment_ready")
    assert dict(error.headers)[b"retry-after"]


def test_no_error_carries_credentials() -> None:
    fault = Unreachable("no connection to http://user:pa55word@host:1/v1?api_key=topsecret1 with Bearer abc123def456")
    message = from_engine_error(fault).message
    for secret in ("pa55word", "topsecret1", "abc123def456"):
        assert secret not in message
    assert "http://host:1/v1" in message
