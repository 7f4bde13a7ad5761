"""Records as a Markdown table."""

from __future__ import annotations

from collections.abc import Iterable

from measure.record_words import engine, marks, mebibytes, output, precision, prompt, seconds, speed
from measure.records import Record


def to_markdown(records: Iterable[Record]) -> str:
    """Return a table for a document: what makes records comparable and what was found, like beside like."""
    head = (
        *("Model", "Precision", "Engine", "Hardware", "Prompt", "Limit", "Concurrency"),
        *("TTFT median", "TTFT maximum", "Decode", "Peak memory", "Output normal", "Date"),
    )
    right = {"Prompt", "Limit", "Concurrency", "TTFT median", "TTFT maximum", "Decode", "Peak memory"}
    lines = [_line(head), _line(["---:" if name in right else "---" for name in head])]
    lines += [_line(_markdown_row(record)) for record in sorted(records, key=_alike)]
    return "\n".join(lines) + "\n"


def _markdown_row(record: Record) -> list[str]:
    return [
        record.model,
        precision(record),
        engine(record),
        record.hardware,
        prompt(record),
        str(record.asked.output_tokens),
        str(record.asked.concurrency),
        "failed" if record.failed else seconds(record.ttft_s),
        seconds(record.ttft_max_s),
        speed(record.decode_per_s),
        mebibytes(record.peak_memory_bytes),
        output(record),
        record.at[:10] + (f", {', '.join(marks(record))}" if marks(record) else ""),
    ]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _alike(record: Record) -> tuple[object, ...]:
    asked = record.asked
    who = (record.model, record.engine, record.engine_version, record.precision.value, record.scheme, record.hardware)
    return (*who, asked.prefix_tokens, asked.output_tokens, asked.concurrency, asked.prompt_tokens, record.at)
