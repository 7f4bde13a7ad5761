from __future__ import annotations

import pytest

from gateway import redaction
from gateway.redaction import HIDDEN, Redactor


def test_known_secrets_are_hidden_the_longer_one_whole() -> None:
    hide = Redactor(["secret", "secret-and-more"])
    assert hide("a secret-and-more, a secret") == f"a {HIDDEN}, a {HIDDEN}"


def test_what_is_too_short_to_be_a_secret_does_not_blot_out_text() -> None:
    assert Redactor(["", "a", "on"])("a banana on a plate") == "a banana on a plate"


def test_the_secrets_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "MAX_SECRETS", 3)
    hide = Redactor(f"secret-{number:04}" for number in range(10))
    assert len(hide._secrets) == 3


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("http://user:pa55@host/v1", "pa55"),
        ("GET /v1?api_key=abcdef&x=1", "abcdef"),
        ("Authorization: Bearer eyJhbGciOi.J9", "eyJhbGciOi"),
        ("Incorrect API key provided: sk-proj-0123456789abcdef.", "0123456789abcdef"),
        ("token hf_abcdefghijklmnopqr", "abcdefghijklmnopqr"),
        ("key sk-pl-QCyXZQ9-2cl_qoaKd16bB4Csh5AacQYX5PRDwHUNPyw", "sk-pl-"),
    ],
)
def test_whatever_has_the_shape_of_a_credential_is_hidden(text: str, secret: str) -> None:
    assert secret not in Redactor()(text)


@pytest.mark.parametrize(
    "text",
    [
        "Bearer authentication is needed",
        "model hf-internal-testing/tiny-random-llama",
        "http://127.0.0.1:8080/v1/models",
        "user@example.org asked",
        "task-abcdefghijklmnopqrstuvw finished",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert Redactor()(text) == text
