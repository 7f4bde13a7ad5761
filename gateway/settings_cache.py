"""Settings of the cache of repeated prompts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from pydantic import ByteSize, Field, field_validator, model_validator

from cache.address import parse_address
from cache.rules import Mode
from gateway.settings_base import Group, Name, Seconds

EMBEDDED = "embedded"
KEY_BYTES = 32


class EncryptionKeySettings(Group):
    """One key that encrypts kept answers."""

    id: Name = Field(description="Its name, kept beside what it encrypts.", examples=["2026-12"])
    env: str = Field(
        min_length=1,
        description="The variable that holds it: 64 hexadecimal digits (`openssl rand -hex 32`).",
        examples=["PACELINE_CACHE_KEY"],
    )

    def key(self) -> bytes:
        """Return the key. Raises ``ValueError`` when the variable does not hold one."""
        try:
            key = bytes.fromhex(os.environ.get(self.env, ""))
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise ValueError(f"the variable {self.env} has to hold {2 * KEY_BYTES} hexadecimal digits")
        return key


class CacheSettings(Group):
    """Repeated prompts. A word stands for the group: `cache: embedded`, `cache: redis://host`, `cache: off`."""

    mode: Mode = Field(
        default=Mode.AUTO,
        description="`auto`: all but requests that ask for variety (a temperature above 0, or several choices, without "
        "a seed); `deterministic`: those with temperature 0 or a seed, and embeddings; `all`; `off`.",
        examples=["deterministic"],
    )
    url: str | None = Field(
        default=None,
        repr=False,
        description="A Redis or Valkey that keeps answers as well: `redis://`, `rediss://`, `unix://`, "
        "`redis+sentinel://hosts/service`, `redis+cluster://hosts`; or `embedded`, a Valkey that Paceline starts.",
        examples=["redis://:secret@redis.example.org:6379/0"],
    )
    prefix: str = Field(
        default="paceline:",
        pattern=r"^[A-Za-z0-9_.:-]{1,64}$",
        description="What all names in that server begin with.",
        examples=["team-a:"],
    )
    ttl_s: Seconds = Field(
        default=86_400.0, description="Seconds that an answer is kept, up to a tenth less.", examples=[3600]
    )
    memory: ByteSize = Field(
        default=ByteSize(64 << 20), description="Memory for answers in this process.", examples=["256MiB"]
    )
    max_entry: ByteSize = Field(
        default=ByteSize(1 << 20),
        ge=1024,
        le=4 << 20,
        description="Largest answer that is kept.",
        examples=["256KiB"],
    )
    lookup_ms: float = Field(
        default=20.0,
        gt=0,
        le=10_000,
        description="Milliseconds that a request waits for the server; then it goes on without.",
        examples=[10],
    )
    shared: bool = Field(
        default=False, description="All keys share their answers. Otherwise each key has its own.", examples=[True]
    )
    groups: dict[str, tuple[str, ...]] = Field(
        default={},
        description="Names of keys that share their answers with each other, by the group's name.",
        examples=[{"research": ["alice", "bob"]}],
    )
    embedded_size: ByteSize = Field(
        default=ByteSize(512 << 20),
        ge=8 << 20,
        description="Memory for the embedded Valkey; what is asked for least goes first.",
        examples=["2GiB"],
    )
    encryption: tuple[EncryptionKeySettings, ...] = Field(
        default=(),
        description="Keys that encrypt what is kept in a server: the first one writes, all of them read.",
        examples=[[]],
    )

    @model_validator(mode="before")
    @classmethod
    def _a_word(cls, value: Any) -> Any:
        if value is False or value == "off":
            return {"mode": Mode.OFF}
        return {"url": value} if isinstance(value, str) else value

    @field_validator("mode", mode="before")
    @classmethod
    def _yaml_reads_off_as_false(cls, value: Any) -> Any:
        return Mode.OFF if value is False else value

    @field_validator("url")
    @classmethod
    def _an_address(cls, url: str | None) -> str | None:
        if url and url != EMBEDDED:
            parse_address(url)
        return url or None

    @field_validator("groups")
    @classmethod
    def _one_group_each(cls, groups: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        members = [key for keys in groups.values() for key in keys]
        if twice := sorted({key for key in members if members.count(key) > 1}):
            raise ValueError(f"a key is in one group at most; in several: {', '.join(twice)}")
        return groups

    def encryption_keys(self) -> dict[str, bytes]:
        """Return the keys by their ids. Raises ``ValueError`` for one that is not there."""
        return {each.id: each.key() for each in self.encryption}

    def secrets(self) -> Iterator[str]:
        """Return what must not be shown."""
        if self.url and self.url != EMBEDDED:
            address = parse_address(self.url)
            yield from (address.password or "", *address.sentinel_login.values())
        yield from (os.environ.get(each.env, "") for each in self.encryption)


class ModelCacheSettings(Group):
    """The cache's settings for one model, instead of the general ones."""

    mode: Mode | None = Field(default=None, description="Instead of `cache.mode`.", examples=["off"])
    ttl_s: Seconds | None = Field(default=None, description="Instead of `cache.ttl_s`.", examples=[600])

    @field_validator("mode", mode="before")
    @classmethod
    def _yaml_reads_off_as_false(cls, value: Any) -> Any:
        return Mode.OFF if value is False else value
