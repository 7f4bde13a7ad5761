"""A record: one cell of a measurement with everything that makes it comparable, and the raw runs it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

import msgspec

from policies.types import Deployment, Operation, PairSample, Precision, SpeedSample


class RecordError(ValueError):
    """What should be a record is none."""


class Kind(StrEnum):
    """What a record was made for."""

    QUICK = "quick"
    """One prompt length of the quick measurement at start."""
    PAIR = "pair"
    """A deployment timed beside a neighbour on the same hardware."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One request, raw. The client's view in seconds; what the engine said beside it, ``None`` where it says nothing.

    ``ttft_s`` ends at the first token with content (for embeddings: at the answer), ``decode_s`` lies between the first
    and the last token. ``faults`` are the reasons why the output is not normal. A ``disturbed`` run had live traffic
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
    nobody stated one), the seed of the measurement's first prompt."""

    prompt_tokens: int
    output_tokens: int
    concurrency: int = 1
    operation: Operation = Operation.COMPLETION
    precision: str = ""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What ran beside a pair record, and the same request alone, a moment earlier.

    ``neighbour`` and ``activity`` are those of ``PairSample``; ``fingerprint`` is the neighbour's.
    """

    neighbour: str
    activity: str
    fingerprint: str
    deployment: str
    alone: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One measured cell: who, where, what was asked, what was found.

    Lengths in tokens and times in seconds are medians over ``runs`` (over those without live traffic beside them, when
    there are any); ``failed`` is the cause when no run succeeded, and then there are no medians. ``at`` is the date in
    ISO 8601, UTC. ``peak_memory_bytes`` is the engine's process on the host, ``None`` where it cannot be read.
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
    tpot_s: float | None = None
    decode_per_s: float | None = None
    total_s: float | None = None
    engine_prefill_s: float | None = None
    engine_decode_s: float | None = None
    peak_memory_bytes: int | None = None
    output_normal: bool | None = None
    faults: tuple[str, ...] = ()
    disturbed: bool = False
    failed: str = ""
    beside: Beside | None = None

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
    def speed(self) -> SpeedSample | None:
        """What this cell teaches about the deployment alone, if it does."""
        if self.kind is Kind.PAIR or self.asked.concurrency != 1 or self.ttft_s is None or not self.uncached_tokens:
            return None
        if self.tpot_s is None and self.asked.operation is not Operation.EMBEDDINGS:
            return None
        return SpeedSample(self.uncached_tokens, self.output_tokens or 0, self.ttft_s, self.tpot_s or 0.0)

    @property
    def pair(self) -> PairSample | None:
        """What this cell teaches about running beside a neighbour, if it does."""
        if self.beside is None or self.ttft_s is None or self.tpot_s is None:
            return None
        alone = self.beside.alone
        if not alone.tpot_s or not alone.ttft_s:
            return None
        return PairSample(
            self.beside.neighbour,
            self.beside.activity,
            prefill_factor=self.ttft_s / alone.ttft_s,
            decode_factor=self.tpot_s / alone.tpot_s,
        )


def summarise(
    kind: Kind,
    deployment: Deployment,
    asked: Asked,
    runs: Sequence[Run],
    *,
    failed: str = "",
    peak_memory_bytes: int | None = None,
    beside: Beside | None = None,
) -> Record:
    """Make the record of one cell, dated now. ``failed`` counts only when there is no run."""
    counted = [run for run in runs if not run.disturbed] or list(runs)
    tpot_s = _median([run.tpot_s for run in counted])
    faults = tuple(dict.fromkeys(fault for run in runs for fault in run.faults))
    return Record(
        kind=kind,
        fingerprint=deployment.fingerprint,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        paceline=paceline_version(),
        deployment=deployment.id,
        model=deployment.model,
        engine=deployment.engine,
        engine_version=deployment.engine_version,
        engine_model=deployment.engine_model,
        precision=deployment.precision,
        scheme=deployment.scheme,
        hardware=deployment.hardware.description or deployment.hardware.host,
        context=deployment.context,
        slots=deployment.slots,
        asked=asked,
        runs=tuple(runs),
        prompt_tokens=_tokens([run.prompt_tokens for run in counted]),
        uncached_tokens=_tokens([run.uncached_tokens for run in counted]),
        output_tokens=_tokens([run.output_tokens for run in counted]),
        ttft_s=_median([run.ttft_s for run in counted]),
        ttft_max_s=max((run.ttft_s for run in counted), default=None),
        tpot_s=tpot_s,
        decode_per_s=1 / tpot_s if tpot_s else None,
        total_s=_median([run.total_s for run in counted]),
        engine_prefill_s=_median([run.engine_prefill_s for run in counted]),
        engine_decode_s=_median([run.engine_decode_s for run in counted]),
        peak_memory_bytes=peak_memory_bytes,
        output_normal=not faults if runs else None,
        faults=faults,
        disturbed=any(run.disturbed for run in counted),
        failed="" if runs else failed or "no run succeeded",
        beside=beside,
    )


def paceline_version() -> str:
    """The installed version, "unknown" when run without being installed."""
    try:
        return version("paceline")
    except PackageNotFoundError:
        return "unknown"


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _tokens(values: Sequence[int]) -> int | None:
    return round(median(values)) if values else None
