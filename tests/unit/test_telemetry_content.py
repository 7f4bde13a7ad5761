"""Prompts and answers in a trace: as much as is wanted, without what must not be seen."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from gateway.settings_telemetry import OtlpProtocol, TelemetrySettings
from gateway.telemetry.content import TOO_LONG, Content, Patterns
from gateway.telemetry.span import Kind, Span
from policies.types import Operation

CARD = r"\b\d{4} \d{4}\b"


def recorded(prompt: object, answer: bytes, *, streamed: bool, limit: int = 1000, **more: Any) -> tuple[Any, Any]:
    spans = [Span("request", "t", "s", "", 0, 1, Kind.SERVER), Span("chat m", "t", "c", "s", 0, 1, Kind.CLIENT)]
    raw = prompt if isinstance(prompt, bytes) else msgspec.json.encode(prompt)
    operation = more.get("operation", Operation.CHAT)
    Content(operation, raw, answer, Patterns([CARD]), limit, streamed=streamed).write(spans)
    assert not spans[0].attributes
    found = spans[1].attributes
    return tuple(json.loads(str(found.get(f"gen_ai.{side}.messages", "null"))) for side in ("input", "output"))


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


def test_a_stream_is_recorded_as_the_text_that_it_makes() -> None:
    stream = b": keep-alive\n\n" + event("card 1234") + event(" 5678, thanks") + b"data: [DO"
    asked, said = recorded([{"role": "user", "content": "mine is 1111 2222"}], stream, streamed=True)
    assert asked == [{"role": "user", "parts": [{"type": "text", "content": "mine is [hidden]"}]}]
    assert said[0]["parts"][0]["content"] == "card [hidden], thanks"


def test_what_is_hidden_is_hidden_however_it_was_escaped() -> None:
    asked, _ = recorded(b'[{"role": "user", "content": "\\u0031111 2222"}]', b"", streamed=False)
    assert asked[0]["parts"][0]["content"] == "[hidden]"


def test_no_more_is_recorded_than_the_limit_and_nothing_of_what_was_cut_unread() -> None:
    asked, said = recorded([{"role": "user", "content": "x" * 50}], b'{"choices": [{"mess', streamed=False, limit=10)
    assert asked[0]["parts"][0]["content"] == "x" * 10
    assert said[0]["parts"][0]["content"] == TOO_LONG[:10]


def test_of_an_image_only_its_being_there_is_recorded() -> None:
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]
    asked, _ = recorded([{"role": "user", "content": parts}], b"", streamed=False)
    assert asked[0]["parts"] == [{"type": "text", "content": "look"}, {"type": "image_url", "content": ""}]


def test_vectors_are_no_texts() -> None:
    asked, said = recorded(["a", "b"], b'{"data": []}', streamed=False, operation=Operation.EMBEDDINGS)
    assert [each["parts"][0]["content"] for each in asked] == ["a", "b"]
    assert said is None


@pytest.mark.parametrize("pattern", ["(", "x*"])
def test_an_expression_that_cannot_be_meant_is_refused(pattern: str) -> None:
    with pytest.raises(ValidationError, match="redact"):
        TelemetrySettings(redact=(pattern,))


def test_the_protocol_is_the_named_one_else_what_the_port_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_PROTOCOL", raising=False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317/")
    assert TelemetrySettings().collector == "http://collector:4317/"
    assert TelemetrySettings().speaks is OtlpProtocol.GRPC
    assert TelemetrySettings(endpoint="http://c:4318").speaks is OtlpProtocol.HTTP
    assert TelemetrySettings(protocol=OtlpProtocol.HTTP).speaks is OtlpProtocol.HTTP
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    assert TelemetrySettings().speaks is OtlpProtocol.HTTP
