"""What records hold, in words and with units, for tables that people read."""

from __future__ import annotations

from measure.records import Record

MISSING = "–"


def marks(record: Record) -> list[str]:
    """Return what a reader has to know of a record, in single words or so."""
    beside = record.beside
    return [
        *([f"beside {beside.deployment} {beside.activity}"] if beside else []),
        *(["imported"] if record.foreign else []),
        *(["live traffic"] if record.disturbed else []),
        *(["busy machine"] if record.machine and record.machine.busy else []),
        *(["timings disagree"] if record.disagreement else []),
    ]


def output(record: Record) -> str:
    """Return whether the output was normal, and why not; for a failed record the cause."""
    if record.failed:
        return record.failed
    return "yes" if record.output_normal else f"no: {', '.join(record.faults)}"


def precision(record: Record) -> str:
    """Return class and scheme: "int4 Q4_K_M"."""
    return f"{record.precision.value} {record.scheme}".strip()


def engine(record: Record) -> str:
    """Return kind and version: "llamacpp b9549"."""
    return f"{record.engine} {record.engine_version}".strip()


def prompt(record: Record) -> str:
    """Return the prompt's real length where it is known, and how much of it was in the prefix cache."""
    tokens = record.asked.prompt_tokens if record.prompt_tokens is None else record.prompt_tokens
    return f"{tokens} ({record.asked.prefix_tokens} cached)" if record.asked.prefix_tokens else f"{tokens}"


def speed(per_s: float | None) -> str:
    """Return a decode speed: "61.2 tok/s"."""
    return MISSING if per_s is None else f"{figures(per_s)} tok/s"


def seconds(value: float | None) -> str:
    """Return a time with its unit: "12.3 ms", "1.23 s"."""
    if value is None:
        return MISSING
    return f"{figures(value)} s" if value >= 1.0 else f"{figures(value * 1000)} ms"


def mebibytes(value: int | None) -> str:
    """Return an amount of memory: "512 MiB", "3.4 GiB"."""
    if value is None:
        return MISSING
    mebi = value / 2**20
    return f"{figures(mebi / 1024)} GiB" if mebi >= 1024 else f"{figures(mebi)} MiB"


def figures(value: float) -> str:
    """Return a positive number with three figures or so: what a measurement is worth."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
