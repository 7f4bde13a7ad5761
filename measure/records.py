"""A record: one cell of a measurement with everything that makes it comparable, and the raw runs it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any, NamedTuple

import msgspec

from measure.machine import Machine
from policies.contention import JOINS
from policies.types import BatchSample, Operation, PairSample, Precision, SpeedSample


class RecordError(ValueError):
    """What should be a record is none."""


class Kind(StrEnum):
    """What a record was made for."""

    QUICK = "quick"
    """One prompt length of the quick measurement at start."""
    GRID = "grid"
    """One prompt length, generation limit and concurrency of a benchmark."""
    PAIR = "pair"
    """A deployment timed beside a neighbour on the same hardware."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One request, raw. The client's view in seconds; what the engine said beside it, ``None`` where it says nothing.

    ``ttft_s`` ends at the first token with content (for embeddings: at the answer), ``decode_s`` lies between the first
    and the last token. ``begun_s`` is when it was sent, after the first request of its cell; requests of one ``round``
    ran at the same time. ``faults`` are the reasons why the output is not normal. A ``disturbed`` run had live traffic
    beside it.
    """

    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    total_s: float
    decode_s: float = 0.0
    cached_tokens: int | None = None
    engine_queue_s: float | None = None
    engine_load_s: float | None = None
    engine_prefill_s: float | None = None
    engine_decode_s: float | None = None
    faults: tuple[str, ...] = ()
    disturbed: bool = False
    begun_s: float = 0.0
    round: int = 0
    finish_reason: str = ""

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens that the engine had to read."""
        return max(0, self.prompt_tokens - (self.cached_tokens or 0))

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first; ``None`` when there was no second one."""
        return self.decode_s / (self.output_tokens - 1) if self.output_tokens > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the measurement wanted, beside what was found: lengths in tokens, the precision by configuration ("" when
    nobody stated one), the seed of the measurement's first prompt.

    ``prefix_tokens`` of each prompt are the same in all runs and in the engine's prefix cache before the first that
    counts. ``forced`` is true where the engine was made to write exactly ``output_tokens``. ``runs`` is how many times
    it was to be done, 0 where nobody said."""

    prompt_tokens: int
    output_tokens: int
    concurrency: int = 1
    operation: Operation = Operation.COMPLETION
    precision: str = ""
    seed: int = 0
    prefix_tokens: int = 0
    forced: bool = False
    runs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What ran beside a pair record, and the same request alone, in turns with it.

    ``neighbour`` and ``activity`` are those of ``PairSample``; ``fingerprint`` is the neighbour's.
    """

    neighbour: str
    activity: str
    fingerprint: str
    deployment: str
    alone: tuple[Run, ...]


class Cell(NamedTuple):
    """The place of a record among those of its deployment: one asking in one kind of measurement."""

    kind: Kind
    operation: Operation
    prompt_tokens: int
    output_tokens: int
    concurrency: int = 1
    prefix_tokens: int = 0
    beside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One measured cell: who, where, what was asked, what was found.

    Lengths in tokens and times in seconds are medians over ``runs`` (over those without live traffic beside them, when
    there are any); ``failed`` is the cause when no run succeeded, and then there are no medians. ``at`` is the date in
    ISO 8601, UTC. A spread is that of the runs: (highest − lowest) / median. ``throughput_per_s`` are the output tokens
    per second of all requests of a round together. The ``engine_…`` times are the engine's own words, ``disagreement``
    says where they and the client's view lie apart. ``peak_memory_bytes`` is the engine's process on the host,
    ``peak_gpu_memory_bytes`` on all GPUs; ``machine`` the state of the host meanwhile; ``settings`` the engine's own
    that change speed, by name; ``None`` and {} where these are not known. ``bench`` names the benchmark that the record
    belongs to. A ``foreign`` record was imported: it can be compared, and teaches nothing about this machine.
    """

    kind: Kind
    fingerprint: str
    at: str
    paceline: str
    deployment: str
    model: str
    engine: str
    engine_version: str
    engine_model: str
    precision: Precision
    scheme: str
    hardware: str
    context: int | None
    slots: int | None
    asked: Asked
    runs: tuple[Run, ...] = ()
    prompt_tokens: int | None = None
    uncached_tokens: int | None = None
    output_tokens: int | None = None
    ttft_s: float | None = None
    ttft_max_s: float | None = None
    ttft_spread: float | None = None
    tpot_s: float | None = None
    decode_per_s: float | None = None
    decode_spread: float | None = None
    total_s: float | None = None
    throughput_per_s: float | None = None
    engine_queue_s: float | None = None
    engine_load_s: float | None = None
    engine_prefill_s: float | None = None
    engine_decode_s: float | None = None
    disagreement: str = ""
    peak_memory_bytes: int | None = None
    peak_gpu_memory_bytes: int | None = None
    machine: Machine | None = None
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)
    output_normal: bool | None = None
    faults: tuple[str, ...] = ()
    disturbed: bool = False
    failed: str = ""
    beside: Beside | None = None
    bench: str = ""
    foreign: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain values only, as JSON has them; ``from_dict`` is the way back."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def from_dict(cls, plain: object) -> Record:
        """Raises ``RecordError`` that names the field which is missing or wrong. Unknown fields are left out."""
        try:
            return msgspec.convert(plain, cls)
        except msgspec.ValidationError as error:
            raise RecordError(str(error)) from None

    @property
    def cell(self) -> Cell:
        """What it has in common with a later record of the same deployment that replaces it."""
        asked, beside = self.asked, self.beside
        return Cell(
            self.kind,
            asked.operation,
            asked.prompt_tokens,
            asked.output_tokens,
            asked.concurrency,
            asked.prefix_tokens,
            (beside.neighbour, beside.activity, beside.fingerprint) if beside else (),
        )

    @property
    def speed(self) -> SpeedSample | None:
        """What this cell teaches about the deployment alone, if it does."""
        asked = self.asked
        if self.foreign or self.kind is Kind.PAIR or asked.concurrency != 1 or asked.prefix_tokens:
            return None
        if self.ttft_s is None or not self.uncached_tokens:
            return None
        if self.tpot_s is None and self.asked.operation is not Operation.EMBEDDINGS:
            return None
        return SpeedSample(self.uncached_tokens, self.output_tokens or 0, self.ttft_s, self.tpot_s or 0.0)

    @property
    def batch(self) -> BatchSample | None:
        """What this cell teaches about equal requests that run at the same time, if it does."""
        asked = self.asked
        if self.foreign or self.kind is not Kind.GRID or asked.prefix_tokens:
            return None
        if self.ttft_s is None or self.tpot_s is None or not self.uncached_tokens:
            return None
        return BatchSample(asked.concurrency, self.uncached_tokens, self.output_tokens or 0, self.ttft_s, self.tpot_s)

    @property
    def pair(self) -> PairSample | None:
        """What this cell teaches about running beside a neighbour, if it does."""
        if self.foreign or self.beside is None or self.ttft_s is None or self.tpot_s is None:
            return None
        firsts = [run.ttft_s for run in self.beside.alone if run.ttft_s]
        steps = [run.tpot_s for run in self.beside.alone if run.tpot_s]
        if not firsts or not steps:
            return None
        # What joining a batch costs is a step of it, however long the prompt: predicted on its own.
        joins = self.beside.neighbour == "same" and self.beside.activity == "decoding"
        first_s = max(0.0, self.ttft_s - JOINS * self.tpot_s) if joins else self.ttft_s
        return PairSample(
            self.beside.neighbour,
            self.beside.activity,
            prefill_factor=first_s / median(firsts),
            decode_factor=self.tpot_s / median(steps),
        )


def paceline_version() -> str:
    """The installed version, "unknown" when run without being installed."""
    try:
        return version("paceline")
    except PackageNotFoundError:
        return "unknown"
