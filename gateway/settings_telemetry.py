"""Settings of traces and metrics."""

from __future__ import annotations

import os
import re
from enum import StrEnum

from pydantic import ByteSize, Field, field_validator

from gateway.settings_base import Group, Seconds

ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOL_VARIABLE = "OTEL_EXPORTER_OTLP_PROTOCOL"


class OtlpProtocol(StrEnum):
    """How a collector is spoken to."""

    GRPC = "grpc"
    HTTP = "http/protobuf"


class TelemetrySettings(Group):
    """Traces and metrics. OTLP's further variables (`OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SERVICE_NAME`, …) count too."""

    metrics: bool = Field(default=True, description="Count, and serve `/metrics` to Prometheus.", examples=[False])
    endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s]+$",
        description="OpenTelemetry collector that gets traces and metrics. Left out: `OTEL_EXPORTER_OTLP_ENDPOINT`, "
        "else none. Needs `paceline[telemetry]`.",
        examples=["http://127.0.0.1:4318"],
    )
    protocol: OtlpProtocol | None = Field(
        default=None,
        description="`grpc` or `http/protobuf`. Left out: `OTEL_EXPORTER_OTLP_PROTOCOL`, else gRPC for port 4317 and "
        "HTTP for others.",
        examples=["grpc"],
    )
    console: bool = Field(default=False, description="Write traces to standard error, as trees.", examples=[True])
    sample: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Share of requests whose trace is kept, where the caller's `traceparent` does not decide. Slow and "
        "failed requests are always kept.",
        examples=[0.01],
    )
    slow_s: Seconds = Field(
        default=10.0,
        description="Seconds from which a request is slow; one that took over twice what was predicted, and a second "
        "more, is slow as well.",
        examples=[5],
    )
    content: bool = Field(
        default=False,
        description="Record prompts and answers in traces. Anybody who sees these reads them.",
        examples=[True],
    )
    content_limit: ByteSize = Field(
        default=ByteSize(16 << 10), ge=256, le=1 << 16, description="Most that is recorded of each.", examples=["4KiB"]
    )
    redact: tuple[str, ...] = Field(
        default=(),
        description="Regular expressions; what they match in recorded prompts and answers is hidden.",
        examples=[[r"\b\d{3}-\d{2}-\d{4}\b"]],
    )
    metrics_every_s: Seconds = Field(
        default=60.0, description="Seconds between two reports of metrics to the collector.", examples=[15]
    )

    @field_validator("redact")
    @classmethod
    def _expressions(cls, redact: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in redact:
            try:
                compiled = re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
            if compiled.match(""):
                raise ValueError(f"{pattern!r} matches nothing at all, which is everywhere")
        return redact

    @property
    def collector(self) -> str:
        """The collector's address, "" without one."""
        return self.endpoint or os.environ.get(ENDPOINT_VARIABLE, "")

    @property
    def speaks(self) -> OtlpProtocol:
        """The collector's protocol."""
        if self.protocol is not None:
            return self.protocol
        named = os.environ.get(PROTOCOL_VARIABLE, "")
        if named in tuple(OtlpProtocol):
            return OtlpProtocol(named)
        return OtlpProtocol.GRPC if self.collector.rstrip("/").endswith(":4317") else OtlpProtocol.HTTP
