"""What a benchmark found, as tables for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gateway.cli.output import Row, styled, table
from measure.record_words import engine, marks, mebibytes, output, precision, prompt, seconds, speed

if TYPE_CHECKING:
    from measure.records import Record

HEAD = ("PROMPT", "OUT", "AT ONCE", "TTFT", "MAX", "SPREAD", "DECODE", "ALL TOGETHER", "MEMORY", "OUTPUT", "NOTE")


def bench_tables(records: Iterable[Record]) -> str:
    """Return one table per deployment, one cell a line."""
    by_deployment: dict[str, list[Record]] = {}
    for record in records:
        by_deployment.setdefault(record.deployment, []).append(record)
    return "\n\n".join(_table(members) for members in by_deployment.values())


def cell_line(record: Record, *, kept: bool) -> str:
    """Return one cell in one line."""
    asked = record.asked
    if record.failed:
        found = f"failed: {record.failed}"
    else:
        notes = ", ".join([*marks(record), *(["measured before"] if kept else [])])
        found = (
            f"TTFT {seconds(record.ttft_s)} (most {seconds(record.ttft_max_s)}), decode {speed(record.decode_per_s)}"
        )
        found = f"{found}, {notes}" if notes else found
    shape = f"{prompt(record)} in, {asked.output_tokens} out, {asked.concurrency} at once"
    return f"{record.deployment}: {shape}: {found}"


def _table(records: list[Record]) -> str:
    first = records[0]
    title = f"{styled(first.deployment, 'bold')}: {first.model} {precision(first)}, {engine(first)}, {first.hardware}"
    rows = [_row(record) for record in sorted(records, key=lambda record: record.cell)]
    lines = [title, table(HEAD, rows, indent="  ")]
    busy = dict.fromkeys(record.machine.busy for record in records if record.machine and record.machine.busy)
    lines += [f"  busy machine: {cause}" for cause in list(busy)[:3]]
    return "\n".join(lines)


def _row(record: Record) -> Row:
    return (
        prompt(record),
        record.output_tokens or record.asked.output_tokens,
        record.asked.concurrency,
        "failed" if record.failed else seconds(record.ttft_s),
        seconds(record.ttft_max_s),
        "" if record.ttft_spread is None else f"{record.ttft_spread:.0%}",
        speed(record.decode_per_s),
        speed(record.throughput_per_s) if record.asked.concurrency > 1 else "",
        mebibytes(record.peak_memory_bytes),
        output(record),
        ", ".join(marks(record)),
    )
