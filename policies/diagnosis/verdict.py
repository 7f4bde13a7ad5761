"""What a diagnosis says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

STEPS = {
    1: "symptom",
    2: "the whole log",
    3: "input and task",
    4: "resources",
    5: "parameters",
    6: "the engine",
}
"""In the order in which they are gone through; the first that explains the excess is the answer."""


class Symptom(StrEnum):
    """Four different things, and none of them."""

    ERROR = "error"
    STUCK = "stuck"
    NO_OUTPUT = "no output"
    SLOW = "slow"
    NONE = "none"


class Cause(StrEnum):
    """What it was, for machines."""

    AS_PREDICTED = "as_predicted"
    CACHED = "cached"
    COALESCED = "coalesced"
    UNMEASURED = "unmeasured"
    REFUSED = "refused"
    OVERLOADED = "overloaded"
    DEADLINE = "deadline"
    STOPPING = "stopping"
    ENGINE_DEAD = "engine_dead"
    ENGINE_SILENT = "engine_silent"
    ENGINE_DIED = "engine_died"
    ENGINE_BUSY = "engine_busy"
    ENGINE_LOADING = "engine_loading"
    ENGINE_REJECTED = "engine_rejected"
    CLIENT_LEFT = "client_left"
    EMPTY_ANSWER = "empty_answer"
    SLOW_UPLOAD = "slow_upload"
    GATEWAY = "gateway"
    GATEWAY_QUEUE = "gateway_queue"
    CACHE = "cache"
    RETRY = "retry"
    CONNECT = "connect"
    ENGINE_QUEUE = "engine_queue"
    COLD_LOAD = "cold_load"
    SLOW_READER = "slow_reader"
    LONG_PROMPT = "long_prompt"
    LONG_ANSWER = "long_answer"
    OUTSIDE = "outside"
    MEMORY = "memory"
    DISK = "disk"
    GPU_MEMORY = "gpu_memory"
    GPU_IDLE = "gpu_idle"
    GPU_SLOWED = "gpu_slowed"
    CPU_BUSY = "cpu_busy"
    PREFIX_LOST = "prefix_lost"
    NEIGHBOURS = "neighbours"
    CONTEXT = "context"
    ENGINE_SLOW = "engine_slow"


HEADLINES = {
    Cause.AS_PREDICTED: "it took what was predicted",
    Cause.CACHED: "it came from the cache",
    Cause.COALESCED: "it shared the answer to an equal request",
    Cause.UNMEASURED: "nothing was predicted for this deployment",
    Cause.REFUSED: "it was refused before it reached a model",
    Cause.OVERLOADED: "there was no place for it here",
    Cause.DEADLINE: "nobody could finish it by its deadline",
    Cause.STOPPING: "Paceline was being stopped",
    Cause.ENGINE_DEAD: "the engine did not answer",
    Cause.ENGINE_SILENT: "the engine was silent",
    Cause.ENGINE_DIED: "the engine died in the middle of its answer",
    Cause.ENGINE_BUSY: "the engine took no more work",
    Cause.ENGINE_LOADING: "the engine was still loading its model",
    Cause.ENGINE_REJECTED: "the engine refused the request itself",
    Cause.CLIENT_LEFT: "its client left",
    Cause.EMPTY_ANSWER: "the engine wrote nothing",
    Cause.SLOW_UPLOAD: "its client sent it slowly",
    Cause.GATEWAY: "the gateway itself was slow",
    Cause.GATEWAY_QUEUE: "it waited for a place in the gateway",
    Cause.CACHE: "the shared cache was slow",
    Cause.RETRY: "another deployment failed first",
    Cause.CONNECT: "the connection to the engine took long",
    Cause.ENGINE_QUEUE: "it waited in the engine's queue",
    Cause.COLD_LOAD: "the model had to be loaded",
    Cause.SLOW_READER: "its client read the answer slowly",
    Cause.LONG_PROMPT: "the prompt was longer than expected",
    Cause.LONG_ANSWER: "the answer was longer than expected",
    Cause.OUTSIDE: "the time went by outside of the model",
    Cause.MEMORY: "the machine was short of memory",
    Cause.DISK: "the machine waited for its disk",
    Cause.GPU_MEMORY: "the GPU's memory was full",
    Cause.GPU_IDLE: "the GPU was hardly used",
    Cause.GPU_SLOWED: "the GPU ran below its speed",
    Cause.CPU_BUSY: "the processors were taken",
    Cause.PREFIX_LOST: "the engine no longer held the prompt's beginning",
    Cause.NEIGHBOURS: "others ran beside it",
    Cause.CONTEXT: "it does not fit the context",
    Cause.ENGINE_SLOW: "the engine was slower than it was measured",
}
"""Each cause in a few words."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number that was seen, with what was expected instead where there is such a thing."""

    what: str
    value: float | str
    unit: str = ""
    expected: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """What one step found: a cause, the seconds that it explains, and what to do about it. ``says`` is a clause."""

    step: int
    cause: Cause
    seconds: float
    says: str
    advice: str
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Looked:
    """One step that was gone through: what it found, in words, and the seconds that it explains."""

    step: int
    name: str
    found: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The answer to "why was it slow". ``text`` is one paragraph; ``step`` the one that explains it, 0 when there was
    nothing to explain. ``excess_s`` is what it took beyond the prediction, outside stages included."""

    symptom: Symptom
    step: int
    cause: Cause
    text: str
    advice: str
    evidence: tuple[Evidence, ...] = ()
    excess_s: float | None = None
    explained_s: float = 0.0
    looked: tuple[Looked, ...] = ()

    @property
    def headline(self) -> str:
        """The cause in a few words."""
        return HEADLINES[self.cause]
