"""What can be asked of a record by name: the fields of selections."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import NamedTuple

from measure.records import Kind, Record
from policies.types import Operation, Precision

IDENTITY_DIGITS = 8
_YES, _NO = "yes", "no"

Test = Callable[[Record], bool]


def identity(record: Record) -> str:
    """Return eight hexadecimal digits for a record, the same on every machine and after an import."""
    asked, beside = record.asked, record.beside
    shape = (asked.prompt_tokens, asked.output_tokens, asked.concurrency, asked.operation.value, asked.prefix_tokens)
    times = [(run.ttft_s, run.total_s) for run in record.runs]
    told = (record.kind.value, record.fingerprint, record.at, shape, times, beside and beside.fingerprint)
    return hashlib.sha256(repr(told).encode()).hexdigest()[:IDENTITY_DIGITS]


class Field(NamedTuple):
    """What a selection can ask of a record. ``test`` makes the question from a value, or raises ``ValueError``."""

    help: str
    test: Callable[[str], Test]
    read: Callable[[Record], str]
    vocabulary: tuple[str, ...] = ()


def _text(help_text: str, read: Callable[[Record], str], vocabulary: Iterable[str] = ()) -> Field:
    def test(value: str) -> Test:
        pattern = value.lower()
        return lambda record: fnmatchcase(read(record).lower(), pattern)

    return Field(help_text, test, read, tuple(vocabulary))


def _prefix(help_text: str, read: Callable[[Record], str]) -> Field:
    return Field(help_text, lambda value: lambda record: read(record).startswith(value.lower()), read)


def _number(help_text: str, read: Callable[[Record], int | None]) -> Field:
    def test(value: str) -> Test:
        if not (found := re.fullmatch(r"(\d+)(?:\.\.(\d+))?", value)):
            raise ValueError("a number, or a range like 64..1024")
        least = int(found[1])
        most = int(found[2] or found[1])
        return lambda record: (number := read(record)) is not None and least <= number <= most

    return Field(help_text, test, lambda record: "" if (number := read(record)) is None else str(number))


def _truth(help_text: str, read: Callable[[Record], bool]) -> Field:
    return _text(help_text, lambda record: _YES if read(record) else _NO, (_YES, _NO))


def _moment(help_text: str, *, last: bool) -> Field:
    def test(value: str) -> Test:
        bound = _bound(value, last=last)
        if last:
            return lambda record: datetime.fromisoformat(record.at) < bound
        return lambda record: datetime.fromisoformat(record.at) >= bound

    return Field(help_text, test, lambda record: record.at)


def _bound(value: str, *, last: bool) -> datetime:
    """The moment at which ``value`` begins, or, when it is the ``last`` that counts, is over."""
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("a date like 2026-12-01 or 2026-12-01T14:30 (UTC unless it names a zone)") from None
    length = timedelta(days=1) if re.fullmatch(r"\d{4}-?\d{2}-?\d{2}", value) else timedelta(seconds=1)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment + length if last else moment


FIELDS: Mapping[str, Field] = {
    "id": _prefix("a record's id, or how it begins", identity),
    "deployment": _text("the deployment's id", lambda r: r.deployment),
    "model": _text("the model's name", lambda r: r.model),
    "engine": _text("the engine's kind: llamacpp, vllm, …", lambda r: r.engine),
    "version": _text("the engine's version", lambda r: r.engine_version),
    "precision": _text("int8, bf16, …", lambda r: r.precision.value, (each.value for each in Precision)),
    "scheme": _text("the quantisation: Q4_K_M, AWQ, …", lambda r: r.scheme),
    "hardware": _text("the hardware's description: *H200*", lambda r: r.hardware),
    "context": _number("context in tokens", lambda r: r.context),
    "slots": _number("requests that run at once", lambda r: r.slots),
    "prompt": _number("prompt length as asked, in tokens", lambda r: r.asked.prompt_tokens),
    "limit": _number("generation limit in tokens", lambda r: r.asked.output_tokens),
    "concurrency": _number("requests sent at once", lambda r: r.asked.concurrency),
    "prefix": _number("prompt tokens in the prefix cache", lambda r: r.asked.prefix_tokens),
    "operation": _text(
        "chat, completion or embeddings", lambda r: r.asked.operation.value, (each.value for each in Operation)
    ),
    "kind": _text("what it was made for: quick, grid, …", lambda r: r.kind.value, (each.value for each in Kind)),
    "fingerprint": _prefix("the fingerprint, or how it begins", lambda r: r.fingerprint),
    "bench": _text("the benchmark it belongs to", lambda r: r.bench),
    "since": _moment("made at this date or later", last=False),
    "until": _moment("made at this date or earlier", last=True),
    "failed": _truth("yes or no: no run succeeded", lambda r: bool(r.failed)),
    "foreign": _truth("yes or no: imported", lambda r: r.foreign),
}
"""Every name that may stand before ``=``."""

MEANT: Mapping[str, str] = {
    **dict.fromkeys(("date", "at", "after", "from"), "since"),
    **dict.fromkeys(("before", "to"), "until"),
    **dict.fromkeys(("prompt_tokens", "prompt-length", "prompt_length", "length"), "prompt"),
    **dict.fromkeys(("max_tokens", "output", "output_tokens", "generation", "tokens"), "limit"),
    **dict.fromkeys(("quantisation", "quantization", "quant"), "scheme"),
    **dict.fromkeys(("gpu", "cpu", "host"), "hardware"),
    **dict.fromkeys(("ctx", "ctx_size"), "context"),
    **dict.fromkeys(("batch", "parallel"), "concurrency"),
    "engine_version": "version",
}
"""Names that other tools use, and which is meant."""
