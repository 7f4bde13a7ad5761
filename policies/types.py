"""The values that all parts share: what a deployment is, what a request needs, what was decided.

Everything here is frozen. Times are seconds (``_s``) on a monotonic clock that the caller reads; lengths are tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from policies.value import value


class Precision(StrEnum):
    """The number format that an engine's weights really run in, whatever the model's name says."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"
    UNKNOWN = "unknown"

    @property
    def bits(self) -> int:
        """Bits per weight, the order of precisions; 0 for unknown, so that it satisfies no least precision."""
        return _BITS[self]

    @property
    def rank(self) -> int:
        """Order of preference: bits first; among 8-bit formats fp8 before int8. Higher is better."""
        return _RANK[self]


_BITS = {
    Precision.FP32: 32,
    Precision.FP16: 16,
    Precision.BF16: 16,
    Precision.FP8: 8,
    Precision.INT8: 8,
    Precision.INT4: 4,
    Precision.UNKNOWN: 0,
}
_RANK = {
    Precision.FP32: 320,
    Precision.FP16: 160,
    Precision.BF16: 160,
    Precision.FP8: 81,
    Precision.INT8: 80,
    Precision.INT4: 40,
    Precision.UNKNOWN: 0,
}


class Capability(StrEnum):
    """Something a request may need and an engine may lack. Absent means: never send such a request there."""

    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDINGS = "embeddings"
    TOOLS = "tools"
    TOOL_CHOICE = "tool_choice"
    """A call can be forced: ``required`` or a named function."""
    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    VISION = "vision"
    AUDIO = "audio"
    LOGPROBS = "logprobs"
    CHOICES = "choices"
    """More than one answer to one request (``n`` > 1)."""


class Operation(StrEnum):
    """What is asked of a model; each has its own path in the API."""

    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDINGS = "embeddings"

    @property
    def capability(self) -> Capability:
        """The capability without which a deployment cannot do this at all."""
        return Capability(self.value)


class Objective(StrEnum):
    """What "fastest" means for a request."""

    LATENCY = "latency"
    """Predicted total time; what the choice costs others counts by half."""
    TTFT = "ttft"
    """Predicted time to the first token."""
    THROUGHPUT = "throughput"
    """Predicted total time plus all of what the choice costs the requests that already run."""


class Quality(StrEnum):
    """The verdict of the quality regression on a deployment's present fingerprint."""

    BASELINE = "baseline"
    PASSED = "passed"
    FAILED = "failed"
    UNTESTED = "untested"


class Health(StrEnum):
    """Whether a deployment can take a request now."""

    UP = "up"
    LOADING = "loading"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Hardware:
    """Where a deployment runs. Deployments with a device in common slow each other.

    ``devices`` are names that are unique across hosts, such as ``"workstation/cpu"`` or ``"workstation/GPU-3f…"``;
    empty for hosted APIs, which share nothing with anyone.
    """

    host: str
    devices: frozenset[str] = frozenset()
    description: str = ""

    @property
    def has_accelerator(self) -> bool:
        """Whether one of the devices is not a processor."""
        return any("/gpu" in device.casefold() for device in self.devices)

    def shares(self, other: Hardware) -> bool:
        """True when both run on at least one common device."""
        return not self.devices.isdisjoint(other.devices)


@dataclass(frozen=True, slots=True)
class Deployment:
    """One model, in one precision, on one engine that runs.

    ``model`` is the logical name that clients ask for, ``engine_model`` the engine's own; ``engine`` the engine's kind
    ("llamacpp", "vllm", …) and ``endpoint`` the name of the engine instance. ``context`` is in tokens per request,
    ``slots`` the number of requests that run at once before others wait (``None`` when the engine batches freely).
    ``fingerprint`` names everything that a speed record depends on: another version, weights, precision, setting or
    hardware is another fingerprint.
    """

    id: str
    model: str
    engine: str
    endpoint: str
    engine_model: str
    precision: Precision
    scheme: str = ""
    context: int | None = None
    slots: int | None = None
    capabilities: frozenset[Capability] = frozenset()
    hardware: Hardware = Hardware("local")
    fingerprint: str = ""
    engine_version: str = ""
    quality: Quality = Quality.UNTESTED
    hosted: bool = False
    stable: bool = False
    """It has passed its soak: dozens of requests in a row, some cancelled, some invalid. Preferred on ties."""
    cache_block: int = 1
    """Tokens of a block of its prefix cache, of which only whole ones are found again; 0 when it has no such cache."""


@value
class RequestFacts:
    """What the policy has to know of a request: never its text.

    ``prompt_tokens`` is the best estimate, ``prompt_tokens_least`` a bound that the true count does not go below (equal
    when ``counted``). ``expected_output`` is what the model will probably write, ``max_output`` what it may.
    ``prefix`` are hashes of the prompt's leading blocks, longest chain last, ``messages`` those of the conversation up
    to the end of each message.
    """

    model: str
    selector: str = ""
    operation: Operation = Operation.CHAT
    prompt_tokens: int = 0
    prompt_tokens_least: int = 0
    counted: bool = False
    expected_output: int = 128
    max_output: int | None = None
    stream: bool = False
    needs: frozenset[Capability] = frozenset()
    prefix: tuple[int, ...] = ()
    messages: tuple[int, ...] = ()
    scope: str = ""
    objective: Objective = Objective.LATENCY
    pinned: str = ""
    """A deployment id that the caller insists on (``x-paceline-deployment``)."""
    only: frozenset[str] = frozenset()
    """Ids of the deployments that an experiment leaves to it; empty: all."""
    further: float = 0.0
    """How many requests will probably begin with this prompt: where they go, it is in the cache then (``Turns``)."""
    deadline_s: float | None = None
    """Seconds from now until the whole answer is wanted. Who is predicted to meet it comes before who is not."""


@value
class LoadView:
    """What is known of a deployment's load at one moment, in sums, so that it costs the same at any number of requests.

    The first five fields come from our own ledger: requests that we sent and that have not ended, those that wait for a
    slot included. ``prefilling`` of the ``inflight`` have no token yet; all owe ``owed_prefill_tokens`` to read
    and ``owed_decode_tokens`` to write, and hold ``context_tokens``. ``foreign_running`` and ``foreign_waiting`` are
    what the engine's own gauges report beyond that, as old as ``age_s``.
    """

    health: Health = Health.UP
    inflight: int = 0
    prefilling: int = 0
    owed_prefill_tokens: float = 0.0
    owed_decode_tokens: float = 0.0
    context_tokens: float = 0.0
    foreign_running: int = 0
    foreign_waiting: int = 0
    age_s: float = 0.0
    resident: bool = True
    load_s: float = 0.0
    """Seconds that a cold model takes to load, when it is not resident; what is left of it, when it is loading."""
    breaker_open: bool = False
    retry_after_s: float = 0.0
    """Seconds for which the engine asked to be left alone."""
    cached_tokens: int = 0
    """Leading prompt tokens of this request that the deployment probably still holds."""
    note: str = ""
    """Why it is down or loading, for a person."""
    lingers_s: float = 0.0
    """Seconds for which its engine, which has nothing to do, will still keep a core busy."""


IDLE = LoadView()
"""Up, loaded, and nothing runs or waits there."""


class Usual(NamedTuple):
    """How many others decode, and how many read or wait, beside a request on some hardware: the mean over its life."""

    decoding: float = 0.0
    prefilling: float = 0.0


NO_COMPANY = Usual()


@value
class Estimate:
    """A prediction in seconds. ``total_s`` = queue + load + prefill + decode; ``ttft_s`` lacks decode.

    ``spread`` is the relative half-width of the interval that should hold four of five outcomes (0.2 means ±20 %).
    ``cost_to_others_s`` is the delay that this choice adds, summed over the requests that already run.
    """

    queue_s: float
    load_s: float
    prefill_s: float
    decode_s: float
    spread: float
    cost_to_others_s: float = 0.0
    cost_to_next_s: float = 0.0
    """The delay that it adds to those who usually come while it runs, should they be sent to the same place."""
    company: float = 0.0
    """Other requests that are there, or usually come while one runs: what the spread is chosen by."""

    @property
    def ttft_s(self) -> float:
        return self.queue_s + self.load_s + self.prefill_s

    @property
    def total_s(self) -> float:
        return self.ttft_s + self.decode_s


@value
class Candidate:
    """A deployment that may serve the request, and why it stands where it stands."""

    deployment: Deployment
    estimate: Estimate | None
    """``None`` for a deployment that has not been measured."""
    reason: str
    cached_tokens: int = 0
    """Leading tokens of the prompt that the deployment was taken to hold."""


@value
class Rejection:
    """A deployment that may not serve the request. ``reason`` completes "DEPLOYMENT: …" for a person."""

    deployment: Deployment
    code: str
    reason: str


@value
class Decision:
    """Candidates in the order in which they will be tried, and what became of all others.

    ``rule`` is the name of the rule that decided (a short token for headers and metrics), the first candidate's
    ``reason`` the sentence that says the deciding difference.
    """

    candidates: Sequence[Candidate]
    rejected: tuple[Rejection, ...]
    rule: str

    @property
    def chosen(self) -> Candidate | None:
        return self.candidates[0] if self.candidates else None

    def __str__(self) -> str:
        chosen = self.chosen
        if chosen is None:
            causes = "; ".join(f"{r.deployment.id}: {r.reason}" for r in self.rejected)
            return f"nobody can serve this: {causes or 'no deployment has this model'}"
        return f"{chosen.deployment.id} ({chosen.deployment.precision}): {chosen.reason}"


@value
class Observation:
    """What one finished request showed, as far as it may teach the predictions.

    ``clean`` is false for cold loads, errors and cancelled calls: they are recorded and kept out of the fit.
    ``prompt_tokens`` and ``output_tokens`` are the engine's own counts; ``cached_tokens`` those of the prompt that it
    did not have to read (``None`` when the engine does not say). ``prefill_s`` and ``decode_s`` are the engine's own
    timings where it gives them. ``ttft_s`` and ``total_s`` are the client's view. ``slots`` are the deployment's.
    ``new_prompt`` is true when it is known that no cache held any of the prompt; without it a request whose engine does
    not count cached tokens teaches no prefill.
    """

    deployment: str
    fingerprint: str
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    total_s: float
    cached_tokens: int | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    queue_s: float | None = None
    load_s: float | None = None
    slots: int | None = None
    clean: bool = True
    neighbours: Mapping[str, float] = field(default_factory=dict)
    """Mean number of other requests beside it: keys ``same_decoding``, ``same_prefilling``, ``other_decoding``,
    ``other_prefilling`` ("other": other deployments on the same hardware). The same keys with ``prefill_`` or
    ``decode_`` before them are the means over that phase alone, where the phases are known (``Lease.close``)."""
    new_prompt: bool = False
    predicted: Estimate | None = None
    """What was predicted when the deployment was chosen, for an answer of ``expected_output`` tokens."""
    expected_output: int = 0


@dataclass(frozen=True, slots=True)
class SpeedSample:
    """One cell of a measurement, alone on its hardware: the median over the runs.

    ``prefill_s`` is the time from the request to the first token for a prompt of ``prompt_tokens`` that was in no
    cache; ``tpot_s`` seconds per output token after the first, over ``output_tokens``.
    """

    prompt_tokens: int
    output_tokens: int
    prefill_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class BatchSample:
    """One cell of a benchmark: ``concurrency`` equal requests sent at once; medians over all of them.

    ``ttft_s`` holds the wait for a slot or a place in the batch as well; 1 is the same request alone.
    """

    concurrency: int
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class PairSample:
    """How much slower a deployment is beside one neighbour: factors ≥ 0 on its time alone.

    ``neighbour`` is ``"same"`` (another request in the same engine) or ``"other"`` (another deployment on the same
    hardware); ``activity`` is what the neighbour does meanwhile, ``"decoding"`` or ``"prefilling"``.
    """

    neighbour: str
    activity: str
    prefill_factor: float
    decode_factor: float
