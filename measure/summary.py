"""Runs become a record: medians, spreads, and what they say of the output and of the engine's own timings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from statistics import median

from measure.agreement import disagreement
from measure.machine import Machine
from measure.records import Asked, Beside, Kind, Record, Run, paceline_version
from policies.types import Deployment


def summarise(
    kind: Kind,
    deployment: Deployment,
    asked: Asked,
    runs: Sequence[Run],
    *,
    failed: str = "",
    peak_memory_bytes: int | None = None,
    peak_gpu_memory_bytes: int | None = None,
    machine: Machine | None = None,
    settings: Mapping[str, str] | None = None,
    beside: Beside | None = None,
    bench: str = "",
) -> Record:
    """Make the record of one cell, dated now. ``failed`` counts only when there is no run."""
    counted = [run for run in runs if not run.disturbed] or list(runs)
    tpot_s = _median([run.tpot_s for run in counted])
    ttft_s = _median([run.ttft_s for run in counted])
    engine_queue_s = _median([run.engine_queue_s for run in counted])
    engine_load_s = _median([run.engine_load_s for run in counted])
    engine_prefill_s = _median([run.engine_prefill_s for run in counted])
    engine_decode_s = _median([run.engine_decode_s for run in counted])
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
        ttft_s=ttft_s,
        ttft_max_s=max((run.ttft_s for run in counted), default=None),
        ttft_spread=_spread([run.ttft_s for run in counted]),
        tpot_s=tpot_s,
        decode_per_s=1 / tpot_s if tpot_s else None,
        decode_spread=_spread([run.tpot_s for run in counted]),
        total_s=_median([run.total_s for run in counted]),
        throughput_per_s=_median(_throughputs(counted)),
        engine_queue_s=engine_queue_s,
        engine_load_s=engine_load_s,
        engine_prefill_s=engine_prefill_s,
        engine_decode_s=engine_decode_s,
        disagreement=disagreement(
            ttft_s=ttft_s,
            decode_s=_median([run.decode_s for run in counted]),
            engine_queue_s=engine_queue_s,
            engine_load_s=engine_load_s,
            engine_prefill_s=engine_prefill_s,
            engine_decode_s=engine_decode_s,
            alone=asked.concurrency == 1,
        ),
        peak_memory_bytes=peak_memory_bytes,
        peak_gpu_memory_bytes=peak_gpu_memory_bytes,
        machine=machine,
        settings=dict(settings or {}),
        output_normal=not faults if runs else None,
        faults=faults,
        disturbed=any(run.disturbed for run in counted),
        failed="" if runs else failed or "no run succeeded",
        beside=beside,
        bench=bench,
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _tokens(values: Sequence[int]) -> int | None:
    return round(median(values)) if values else None


def _spread(values: Sequence[float | None]) -> float | None:
    """(Highest − lowest) / median; ``None`` where a single value has none."""
    known = [value for value in values if value is not None]
    middle = median(known) if len(known) > 1 else 0.0
    return (max(known) - min(known)) / middle if middle else None


def _throughputs(runs: Sequence[Run]) -> list[float]:
    """Output tokens per second of each round: from its first request to its last answer."""
    rounds: dict[int, list[Run]] = {}
    for run in runs:
        rounds.setdefault(run.round, []).append(run)
    found = []
    for members in rounds.values():
        took_s = max(run.begun_s + run.total_s for run in members) - min(run.begun_s for run in members)
        if took_s > 0 and (tokens := sum(run.output_tokens for run in members)):
            found.append(tokens / took_s)
    return found
