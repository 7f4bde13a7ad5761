"""Error answers of real engines, word for word, and what they mean."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from adapters.errors import Broken, Busy, EngineError, Loading, Rejected
from adapters.openai_errors import MAX_MESSAGE, error_from_event, error_from_response


def refusal(status: int, body: Any, headers: dict[str, str] | None = None, secret: str = "") -> EngineError:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return error_from_response(status, headers or {}, data, secret=secret)


def openai(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


LLAMA_TOO_LONG = openai(
    "request (3010 tokens) exceeds the available context size (2048 tokens), try increasing it",
    code=400,
    type="exceed_context_size_error",
    n_prompt_tokens=3010,
    n_ctx=2048,
)
TOO_LONG = {
    "llama.cpp": (LLAMA_TOO_LONG, "the prompt has 3010 tokens and the context holds 2048"),
    "llama.cpp inside of a string": ({"error": json.dumps(LLAMA_TOO_LONG)}, "3010 tokens and the context holds 2048"),
    "vLLM": (
        openai(
            "This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049 input "
            "tokens, which exceeds this limit even without any output tokens.",
            type="BadRequestError",
            param="input_tokens",
        ),
        "the prompt has at least 2049 tokens and the context holds 2048",
    ),
    "OpenAI": (
        openai(
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens "
            "(9001 in the messages). Please reduce the length.",
            code="context_length_exceeded",
        ),
        "the prompt has 9001 tokens and the context holds 8192",
    ),
    "without numbers": ({"error": "the input length exceeds the context length"}, "the input length exceeds"),
}


@pytest.mark.parametrize("name", TOO_LONG)
def test_a_prompt_that_is_too_long_names_both_numbers(name: str) -> None:
    body, words = TOO_LONG[name]
    error = refusal(400, body)
    assert isinstance(error, Rejected)
    assert error.code == "context_length_exceeded"
    assert error.elsewhere
    assert words in error.message


UNSUPPORTED: list[tuple[int, Any]] = [
    (500, openai("image input is not supported - hint: you may need to provide the mmproj", code=500)),
    (501, openai("This server does not support embeddings. Start it with `--embeddings`", code=501)),
    (400, openai("smollm2 is not a multimodal model")),
    (400, openai('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')),
    (400, openai("Field 'n': Value must be between 1 <= value <= 2, but got 3")),
    (404, {"detail": "Not Found"}),
    (404, b"Not Found"),
    (405, b"method not allowed"),
]


@pytest.mark.parametrize(("status", "body"), UNSUPPORTED)
def test_what_this_engine_cannot_do_another_may(status: int, body: Any) -> None:
    error = refusal(status, body)
    assert isinstance(error, Rejected)
    assert error.code == "unsupported"
    assert error.elsewhere
    assert not error.counts_for_breaker


WRONG: list[tuple[int, Any, int, str | None]] = [
    (400, openai("Expected 'messages' to be an array", code=400, type="invalid_request_error"), 400, None),
    (400, openai("1 validation error", param="body.max_tokens", code=400), 400, "max_tokens"),
    (422, {"detail": [{"loc": ["body"], "msg": "field required"}]}, 422, None),
    (413, openai("too large"), 413, None),
    (500, {"error": 'option "num_predict" must be of type integer'}, 400, None),
    (500, {"error": "invalid format: expected a JSON schema"}, 400, None),
    (
        400,
        {"object": "error", "message": "temperature must be non-negative", "param": "temperature"},
        400,
        "temperature",
    ),
]


@pytest.mark.parametrize(("status", "body", "expected", "param"), WRONG)
def test_the_clients_mistake_stays_the_clients_mistake(
    status: int, body: Any, expected: int, param: str | None
) -> None:
    error = refusal(status, body)
    assert isinstance(error, Rejected)
    assert (error.status, error.param) == (expected, param)
    assert not error.elsewhere


def test_a_code_in_words_is_kept_and_a_status_as_code_is_not() -> None:
    words, number = refusal(400, openai("x", code="invalid_image")), refusal(400, openai("x", code=400))
    assert isinstance(words, Rejected)
    assert isinstance(number, Rejected)
    assert (words.code, number.code) == ("invalid_image", None)


def test_a_model_that_is_not_there_is_asked_for_elsewhere() -> None:
    error = refusal(404, openai("The model `nope` does not exist.", param="model", code=404))
    assert isinstance(error, Rejected)
    assert (error.code, error.status, error.elsewhere) == ("model_not_found", 404, True)


@pytest.mark.parametrize("status", [408, 429, 503, 529])
def test_busy_is_not_broken(status: int) -> None:
    error = refusal(status, openai("server busy, please try again"), {"retry-after": "3"})
    assert type(error) is Busy
    assert error.retry_after_s == 3.0
    assert not error.counts_for_breaker


def test_loading_is_not_busy() -> None:
    error = refusal(503, openai("Loading model", type="unavailable_error", code=503))
    assert isinstance(error, Loading)
    assert not error.counts_for_breaker


@pytest.mark.parametrize("status", [500, 502, 504, 599])
def test_the_engines_own_fault_is_broken(status: int) -> None:
    error = refusal(status, openai("CUDA out of memory"))
    assert isinstance(error, Broken)
    assert "CUDA out of memory" in error.message


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_are_the_operators_business_and_not_repeated(status: int) -> None:
    error = refusal(status, openai("Incorrect API key provided: sk-12345"), secret="sk-12345")
    assert isinstance(error, Broken)
    assert "sk-" not in error.message
    assert "api_key" in error.message


@pytest.mark.parametrize("status", [204, 302, 700])
def test_a_status_that_has_no_business_here_is_broken(status: int) -> None:
    assert isinstance(refusal(status, b""), Broken)


def test_a_date_to_retry_after_becomes_seconds() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    error = refusal(503, b"", {"retry-after": date})
    assert isinstance(error, Busy)
    assert error.retry_after_s is not None
    assert 80 < error.retry_after_s <= 90


@pytest.mark.parametrize("text", ["", "soon", "Mon, 99 Foo"])
def test_a_nonsense_to_retry_after_is_none(text: str) -> None:
    error = refusal(429, b"", {"retry-after": text})
    assert isinstance(error, Busy)
    assert error.retry_after_s is None


def test_an_endless_page_is_cut() -> None:
    assert len(refusal(500, b"x" * 100_000).message) < MAX_MESSAGE + 100


@pytest.mark.parametrize(
    "body", [b"\xff\xfe\x00", b"{", b"[1]", b"null", b'{"error":null}', b'{"error":{"message":null}}']
)
def test_any_bytes_become_an_error(body: bytes) -> None:
    assert isinstance(refusal(500, body), Broken)
    assert isinstance(refusal(400, body), Rejected)


def test_an_error_inside_of_a_stream_goes_by_its_code() -> None:
    assert isinstance(error_from_event({"message": "x", "code": 503}), Busy)
    assert isinstance(error_from_event({"message": "x", "code": 400}), Rejected)
    assert isinstance(error_from_event({"message": "x", "code": "weird"}), Broken)
    assert isinstance(error_from_event({"message": "x", "code": 200}), Broken)
    assert isinstance(error_from_event("x"), Broken)
