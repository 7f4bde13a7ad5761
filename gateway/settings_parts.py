"""Settings of the gateway itself: server, keys, limits, routing, discovery, log."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import ByteSize, Field, field_validator, model_validator

from adapters.registry import USUAL_PORTS
from cache.rules import Mode
from gateway.settings_base import Group, Name, Seconds
from gateway.settings_cache import ModelCacheSettings
from policies.types import Objective, Precision

DEFAULT_PORT = 7223


class ServerSettings(Group):
    """Where Paceline listens, and how it treats connections."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address to listen on. Anything but this machine's own needs keys (`auth.keys`).",
        examples=["0.0.0.0"],
    )
    port: int = Field(
        default=DEFAULT_PORT, ge=0, le=65535, description="Port; 0 picks a free one.", examples=[DEFAULT_PORT]
    )
    cors_origins: tuple[str, ...] = Field(
        default=(),
        description='Web pages\' origins that browsers may call from; `["*"]` for all, which needs keys.',
        examples=[["https://chat.example.org"]],
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(),
        description="Further names by which clients call this machine while there are no keys (`Host` header).",
        examples=[["workstation.local"]],
    )
    max_body_bytes: ByteSize = Field(
        default=ByteSize(32 * 1024 * 1024),
        ge=1024,
        description="Largest request body; beyond it: 413.",
        examples=["32MiB"],
    )
    graceful_stop_s: float = Field(
        default=30.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds that answers may go on after a stop.",
        examples=[30],
    )
    keepalive_s: Seconds = Field(
        default=10.0, description="Seconds of silence in a stream before a keep-alive comment.", examples=[10]
    )

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if origin != "*" and ("://" not in origin or origin.rstrip("/").count("/") != 2):
                raise ValueError(f"an origin is a scheme and a host, such as https://chat.example.org: {origin!r}")
        return tuple(origin.rstrip("/") for origin in origins)


class KeySettings(Group):
    """One key that clients may show."""

    name: Name = Field(description="Who has it; shown in logs and limits.", examples=["alice"])
    hash: str | None = Field(
        default=None,
        pattern=r"^sha256:[0-9a-f]{64}$",
        repr=False,
        description="The key's hash, as `paceline key` prints it.",
        examples=["sha256:9f86d0…"],
    )
    env: str | None = Field(
        default=None,
        min_length=1,
        description="Or: the variable that holds the key itself.",
        examples=["PACELINE_KEY_ALICE"],
    )
    admin: bool = Field(default=False, description="May use `/admin/*`.", examples=[True])
    max_concurrent: int | None = Field(
        default=None, ge=1, description="Its own limit, instead of `limits.per_key`.", examples=[8]
    )
    cache: Mode | None = Field(default=None, description="Instead of `cache.mode`.", examples=["off"])

    @field_validator("cache", mode="before")
    @classmethod
    def _yaml_reads_off_as_false(cls, value: Any) -> Any:
        return Mode.OFF if value is False else value

    @model_validator(mode="after")
    def _one_source(self) -> KeySettings:
        if (self.hash is None) == (self.env is None):
            raise ValueError("needs either 'hash' (from `paceline key`) or 'env' (a variable's name)")
        return self


class AuthSettings(Group):
    """Who may use it. Without keys: everyone on this machine, nobody else."""

    keys: tuple[KeySettings, ...] = Field(default=(), description="Keys that are accepted.", examples=[[]])

    @field_validator("keys")
    @classmethod
    def _distinct(cls, keys: tuple[KeySettings, ...]) -> tuple[KeySettings, ...]:
        names = [key.name for key in keys]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"each key needs its own name; more than once: {', '.join(twice)}")
        return keys


class LimitSettings(Group):
    """How much is taken on at once. What is beyond waits in a queue, then gets 429 with `Retry-After`."""

    max_concurrent: int = Field(default=512, ge=1, description="Requests at once, all keys together.", examples=[512])
    per_key: int | None = Field(default=None, ge=1, description="Requests at once for each key.", examples=[16])
    queue: int = Field(default=1024, ge=0, description="Requests that may wait; 0 refuses at once.", examples=[1024])
    queue_timeout_s: Seconds = Field(default=30.0, description="Seconds that one waits at most.", examples=[30])


class ModelSettings(Group):
    """A logical model's own settings."""

    aliases: tuple[str, ...] = Field(default=(), description="Other names for it.", examples=[["gpt-4o-mini"]])
    objective: Objective | None = Field(default=None, description="Instead of `routing.objective`.", examples=["ttft"])
    cache: ModelCacheSettings = Field(default=ModelCacheSettings(), description="Instead of `cache`'s own.")
    trusted_precision: Precision | None = Field(
        default=None,
        description="Least precision that serves also those who asked for none, without `paceline quality`.",
        examples=["int8"],
    )


class RoutingSettings(Group):
    """What decides between deployments."""

    objective: Objective = Field(
        default=Objective.LATENCY,
        description="What fastest means: `latency` (total), `ttft`, or `throughput` (with the delay for others).",
        examples=["latency"],
    )
    cost_to_others: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Weight, for `latency`, of the delay that a choice adds to requests that run already.",
        examples=[0.5],
    )
    margin_8_bits: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="How much faster than 16 bits an 8-bit deployment that passed its quality regression has to be to "
        "serve who named no precision: 0.1 is 10 %.",
        examples=[0.2],
    )
    margin_4_bits: float = Field(default=0.2, ge=0, lt=1, description="The same for fewer than 8 bits.", examples=[0.3])
    measure_at_start: bool = Field(
        default=True,
        description="Measure deployments in the background that have no record, or one that no longer holds.",
        examples=[False],
    )
    probe_share: float = Field(
        default=0.01,
        ge=0,
        le=0.2,
        description="Share of the time for short probes of unused deployments while their hardware is idle; 0: none. "
        "There are none on battery, and none of hosted APIs.",
        examples=[0.005],
    )
    probe_after_s: Seconds = Field(
        default=900.0, description="Seconds without a request after which a deployment is probed.", examples=[3600]
    )


class DiscoverySettings(Group):
    """Engines found on this machine's usual ports."""

    enabled: bool | None = Field(
        default=None, description="Left out: only when no engines are configured.", examples=[True]
    )
    ports: tuple[int, ...] = Field(
        default=USUAL_PORTS, description="Ports of 127.0.0.1 that are looked at.", examples=[[8080, 11434]]
    )

    @field_validator("ports")
    @classmethod
    def _ports(cls, ports: tuple[int, ...]) -> tuple[int, ...]:
        if any(not 1 <= port <= 65535 for port in ports):
            raise ValueError("ports are numbers from 1 to 65535")
        return tuple(dict.fromkeys(ports))


class LogLevel(StrEnum):
    """The least severe messages that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """`auto`: text for a terminal, JSON for a file or a pipe."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


class LogSettings(Group):
    """What is written to standard error."""

    level: LogLevel = Field(default=LogLevel.INFO, description="Least severe messages.", examples=["warning"])
    format: LogFormat = Field(
        default=LogFormat.AUTO,
        description="`text`, `json`, or `auto`: text for a terminal, JSON otherwise.",
        examples=["json"],
    )
    access: bool = Field(default=False, description="One line per request.", examples=[True])
    access_share: float = Field(
        default=1.0, ge=0, le=1, description="Share of the requests that went well with a line.", examples=[0.01]
    )
