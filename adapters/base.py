"""What every adapter is to the rest of Paceline: describe, load, send, close."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from adapters.body import Body
from policies.types import Capability, Operation, Precision
from policies.value import value


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an engine is, and what the operator said about it.

    ``api_key`` is sent as a bearer token. ``precision`` and ``scheme`` are the operator's word, used where the engine
    does not tell; ``models`` maps an engine's model name to the logical name. ``options`` are fields added to each
    request body that does not have them. ``tokenizer_dir`` (and ``model_dir``) is a readable model folder, if any.
    ``slots`` is the operator's word too, for engines that do not tell.
    """

    name: str
    url: str
    api_key: str = ""
    precision: Precision | None = None
    scheme: str = ""
    models: dict[str, str] = field(default_factory=dict)
    options: dict[str, object] = field(default_factory=dict)
    model_dir: str = ""
    slots: int | None = None
    verify_tls: bool = True
    connect_timeout_s: float = 3.0
    first_byte_timeout_s: float = 600.0
    silence_timeout_s: float = 300.0


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """One model as its engine describes it. ``precision_from`` says whose word the precision is:
    ``engine``, ``model folder``, ``configuration`` or ``nobody``. ``digest`` identifies the weights."""

    engine_model: str
    precision: Precision = Precision.UNKNOWN
    scheme: str = ""
    precision_from: str = "nobody"
    context: int | None = None
    slots: int | None = None
    capabilities: frozenset[Capability] = frozenset()
    digest: str = ""
    resident: bool = True
    settings: str = ""
    """Other settings that change speed or output, in a stable spelling: part of the fingerprint."""
    cache_block: int = 1
    """``Deployment.cache_block``."""


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """An engine that answered: its kind as recognised, its label for people, its version and its models."""

    kind: str
    label: str
    version: str
    models: tuple[ModelDescription, ...]


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The engine's own gauges; ``None`` where it has none. ``resident`` are the engine models that are loaded."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    resident: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class EngineTotals:
    """What an engine has counted since it started: finished requests, and the seconds that they spent in each phase."""

    requests: float
    queue_s: float
    prefill_s: float
    decode_s: float


@value
class Call:
    """One request on its way to one engine.

    ``model`` is the name the client asked for and will be told; ``engine_model`` the engine's own. ``stream`` and
    ``include_usage`` are the client's wishes: an adapter may stream anyway (see ``Answer.streamed``).
    ``prompt_tokens`` is the best estimate, for engines that must be told a context size.
    """

    operation: Operation
    body: Body
    model: str
    engine_model: str
    stream: bool
    include_usage: bool
    prompt_tokens: int = 0
    max_output: int | None = None
    context: int | None = None
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Outcome:
    """What an answer has shown so far; filled while it passes. Times are ``loop.time()`` seconds.

    ``whole`` is true once the engine has said that the answer is complete. ``prefill_s``, ``decode_s``, ``queue_s`` and
    ``load_s`` are the engine's own timings where it gives them. ``output_chunks`` counts stream events that carried
    output: the live guess of the tokens written before usage is known. ``prefill_done`` and ``prefill_all`` are prompt
    tokens read so far, from engines that report progress.
    """

    connected_at: float = 0.0
    """When there was a connection to send the request on; 0 where that is not known."""
    first_token_at: float | None = None
    last_token_at: float | None = None
    output_chunks: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    response_id: str = ""
    """What the engine calls its answer: the body's ``id``, "" where it has none."""
    whole: bool = False
    queue_s: float | None = None
    load_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    prefill_done: int | None = None
    prefill_all: int | None = None

    @property
    def written(self) -> int:
        """Output tokens by the engine's count, else by that of the events that carried some."""
        return self.output_tokens or self.output_chunks

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first; ``None`` for an answer that has no second one."""
        first, last, written = self.first_token_at, self.last_token_at, self.written
        return (last - first) / (written - 1) if first is not None and last is not None and written > 1 else None


class Answer(ABC):
    """An engine's answer, in OpenAI's form, past its status line.

    When ``streamed``, ``read`` gives server-sent events, always whole ones, ready for the client: the model's name as
    asked for, usage only when asked for. Otherwise it gives the one JSON body in pieces.
    """

    streamed: bool
    outcome: Outcome
    kept: list[bytes] | None = None
    """Where an answer that is joined from events leaves these as they pass, if somebody wants them."""

    @abstractmethod
    async def read(self) -> bytes | None:
        """Return what can go to the client now; ``b""`` for a sign of life only, ``None`` at the end.

        Raises ``Interrupted``, ``TimedOut``, ``Broken`` or, before the first byte, any ``EngineError`` that the engine
        reported inside of a 200.
        """

    async def read_all(self) -> bytes:
        """Read to the end, and close. Raises as ``read`` does."""
        pieces: list[bytes] = []
        try:
            while (piece := await self.read()) is not None:
                pieces.append(piece)
        finally:
            self.close()
        return b"".join(pieces)

    @abstractmethod
    def close(self) -> None:
        """End the call at once: the upstream connection is aborted unless the answer is complete. Idempotent."""


class Adapter(ABC):
    """One engine instance. Safe to use from many tasks; owns its connection pool."""

    kind: str
    label: str
    always_stream: ClassVar[bool] = True
    """Ask for a stream also when the client does not: most engines notice a leaving client only so, and only so is the
    first token seen. One that notices it in any case may pass its one body through, at a fraction of the cost."""
    lingers_s: ClassVar[float] = 0.0
    """Seconds for which the engine keeps a core busy after its last answer, waiting for the next request."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    @abstractmethod
    async def describe(self) -> EngineDescription:
        """Ask the engine what it is and what it serves. Raises ``EngineError`` (``Loading`` while it loads)."""

    @abstractmethod
    async def load(self) -> EngineLoad:
        """Ask the engine's gauges. Raises ``EngineError``. Called seldom: watching disturbs."""

    async def totals(self) -> EngineTotals | None:
        """Ask for the engine's sums, where it tells no timings with its answers; ``None`` where it has none.

        Raises ``EngineError``. For benchmarks: the difference of two readings is what the requests in between took.
        """
        return None

    @abstractmethod
    async def send(self, call: Call) -> Answer:
        """Send a request and return once the engine has accepted it (its head has arrived). Raises ``EngineError``."""

    async def count_tokens(self, call: Call) -> int | None:
        """Return the exact prompt length from the engine's tokeniser, or ``None`` where there is none."""
        return None

    @abstractmethod
    async def aclose(self) -> None:
        """Close the pool. Calls in flight are aborted."""
