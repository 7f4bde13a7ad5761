"""What is known of one request: its stages, what was predicted, what the machine did meanwhile. Never its text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, fields
from enum import StrEnum

from policies.value import value


class Ended(StrEnum):
    """What became of a request."""

    DONE = "done"
    CANCELLED = "cancelled"
    """Its client left."""
    FAILED = "failed"
    REFUSED = "refused"
    RUNNING = "running"


@value
class Stages:
    """Where a request's seconds went, in the order in which they pass; together they are its whole time."""

    read_s: float = 0.0
    """Until all of the request had come."""
    route_s: float = 0.0
    """The gateway itself: authentication, reading, routing."""
    wait_s: float = 0.0
    """In the gateway's queue."""
    cache_s: float = 0.0
    """The shared cache was asked, or the answer of an equal request was waited for."""
    retry_s: float = 0.0
    """Attempts that failed before the last one."""
    connect_s: float = 0.0
    queue_s: float = 0.0
    """In the engine, before it began to read."""
    load_s: float = 0.0
    """The model was being loaded."""
    prefill_s: float = 0.0
    decode_s: float = 0.0
    engine_s: float = 0.0
    """Queue, prefill and decode of an answer that came as one body from an engine that does not tell them apart."""
    client_s: float = 0.0
    """The answer was there and its client did not read it."""
    other_s: float = 0.0

    def items(self) -> Iterator[tuple[str, float]]:
        """Yield each stage's name, without the unit, and its seconds."""
        for each in fields(self):
            yield each.name.removesuffix("_s"), getattr(self, each.name)

    @property
    def total_s(self) -> float:
        return sum(seconds for _, seconds in self.items())


@value
class Expected:
    """What was predicted when the deployment was chosen: seconds, for so many tokens. See ``Estimate``."""

    queue_s: float = 0.0
    load_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    spread: float = 0.4
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    company: float = 0.0
    """Others that were taken to be beside it."""

    @property
    def ttft_s(self) -> float:
        return self.queue_s + self.load_s + self.prefill_s

    @property
    def total_s(self) -> float:
        return self.ttft_s + self.decode_s


@value
class Alone:
    """What the deployment takes with nothing beside it for the tokens that it turned out to be: by its measurement and
    what was learned since."""

    prefill_s: float
    decode_s: float


@value
class Try:
    """One attempt. ``error`` is the kind of fault (``Unreachable``, ``TimedOut``, …), "" when there was none."""

    deployment: str
    took_s: float
    error: str = ""
    message: str = ""


@value
class Resources:
    """This machine while the request ran: the worst of the samples, one a second; ``None`` where nobody says.

    Stalls are shares of a second, 0 to 1, during which some process waited for memory, disk or a processor (Linux's
    pressure stall information). ``gpu_use`` and ``gpu_memory_*`` are those of the fullest GPU.
    """

    samples: int
    memory_bytes: int | None = None
    memory_available_bytes: int | None = None
    swap_used_bytes: int | None = None
    swapped_bytes_per_s: float | None = None
    memory_stall: float | None = None
    disk_stall: float | None = None
    cpu_stall: float | None = None
    busy_cores: float | None = None
    cores: float | None = None
    gpu_use: float | None = None
    gpu_memory_bytes: int | None = None
    gpu_memory_used_bytes: int | None = None
    gpu_slowed: bool | None = None


@value
class Neighbour:
    """A deployment on the same hardware that answered others while this request was in its engine.

    ``others`` is their mean number over that time, ``later`` of them those that were sent there after this one: no
    prediction could count them.
    """

    deployment: str
    others: float
    later: float


@value
class Case:
    """One request. ``at`` is when it arrived, seconds since the epoch; counts of tokens are the engine's own."""

    request_id: str
    at: float
    operation: str
    model: str = ""
    """As it was asked for."""
    caller: str = ""
    ended: Ended = Ended.DONE
    streamed: bool = False
    total_s: float = 0.0
    ttft_s: float | None = None
    """Until the first token was here, counted from the arrival."""
    stages: Stages = field(default_factory=Stages)
    status: int = 200
    error: str = ""
    error_code: str = ""
    cache: str = "off"
    deployment: str = ""
    engine: str = ""
    precision: str = ""
    reason: str = ""
    """Why it went there."""
    local: bool = False
    """The deployment runs on this machine."""
    on_gpu: bool = False
    slots: int | None = None
    context: int | None = None
    was_cold: bool = False
    tries: tuple[Try, ...] = ()
    expected: Expected | None = None
    """``None`` when the deployment was not measured, or none was asked."""
    alone: Alone | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    max_output: int | None = None
    finish_reason: str = ""
    read_tokens: int | None = None
    """Of the prompt, so far, by engines that tell."""
    silent_s: float | None = None
    """Since the engine's last sign: from its last token, or from when it was asked, to the end."""
    neighbours: Mapping[str, float] = field(default_factory=dict)
    """Mean numbers of others beside it (``Observation.neighbours``)."""
    beside: tuple[Neighbour, ...] = ()
    """Who they were, the one with the most of them first, as far as this gateway sent them there."""
    outside: tuple[tuple[str, float], ...] = ()
    """Stages before it that its caller names, with their seconds."""
    resources: Resources | None = None

    @property
    def uncached_tokens(self) -> int | None:
        """Prompt tokens that the engine had to read."""
        return None if self.prompt_tokens is None else max(0, self.prompt_tokens - (self.cached_tokens or 0))

    @property
    def outside_s(self) -> float:
        return sum(seconds for _, seconds in self.outside)

    @property
    def asked_an_engine(self) -> bool:
        return bool(self.tries)
