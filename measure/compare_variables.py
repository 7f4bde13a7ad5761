"""In what two selections of records differ: the variables of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from measure.records import Kind, Record
from policies.types import Precision

_NAMED_BY_ITS_CLASS = frozenset({Precision.FP32, Precision.FP16, Precision.BF16})
"""Precisions whose scheme (F16, BF16) is only another spelling."""
_HAVE_FIELDS = frozenset({"ctx", "context", "slots"})
"""Engine settings that a record has in a field of its own."""

CELL = ("prompt", "limit", "concurrency", "prefix", "operation", "beside")
"""The variables that make the cells of a grid."""


class Key(NamedTuple):
    """The cell of a record among those of one selection, spelled as people read it. Quick and grid cells are alike."""

    prompt: int
    limit: int
    concurrency: int
    prefix: int
    operation: str
    beside: str

    def __str__(self) -> str:
        parts = [f"prompt {self.prompt}", f"limit {self.limit}", f"concurrency {self.concurrency}"]
        parts += [f"{self.prefix} in the prefix cache"] if self.prefix else []
        parts += [f"beside {self.beside}"] if self.beside else []
        return ", ".join(parts)


def key(record: Record) -> Key:
    """Return the cell in which a record may stand beside one of the other side."""
    asked, beside = record.asked, record.beside
    neighbour = f"{beside.deployment} {beside.activity}" if record.kind is Kind.PAIR and beside else ""
    return Key(
        asked.prompt_tokens,
        asked.output_tokens,
        asked.concurrency,
        asked.prefix_tokens,
        asked.operation.value,
        neighbour,
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """A variable and its values on both sides, in words; ``several`` when one side holds more than one."""

    name: str
    before: str
    after: str
    several: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.before or 'none'} → {self.after or 'none'}"


class Described(Protocol):
    """What has variables: a record, or a deployment that serves."""

    @property
    def model(self) -> str: ...
    @property
    def engine(self) -> str: ...
    @property
    def engine_version(self) -> str: ...
    @property
    def precision(self) -> Precision: ...
    @property
    def scheme(self) -> str: ...
    @property
    def hardware(self) -> str: ...
    @property
    def context(self) -> int | None: ...
    @property
    def slots(self) -> int | None: ...
    @property
    def settings(self) -> Mapping[str, str]: ...
    @property
    def fingerprint(self) -> str: ...


class NotComparable(ValueError):
    """More than one variable differs, or there is nothing to compare; ``differences`` are the variables."""

    def __init__(self, message: str, differences: Sequence[Difference] = (), fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.differences = tuple(differences)
        self.fix = fix


def precision(record: Described) -> str:
    """Return class and scheme as one value: ``int4 Q4_K_M``, but ``bf16`` however that file calls it."""
    scheme = "" if record.precision in _NAMED_BY_ITS_CLASS else record.scheme
    return f"{record.precision.value} {scheme}".strip()


_SAME_ENGINE: Mapping[str, Callable[[Described], str]] = {"version": lambda r: r.engine_version}
"""What compares only within one kind of engine."""
_ALWAYS: Mapping[str, Callable[[Described], str]] = {
    "model": lambda r: r.model,
    "engine": lambda r: r.engine,
    "precision": precision,
    "hardware": lambda r: r.hardware,
    "context": lambda r: "" if r.context is None else str(r.context),
    "slots": lambda r: "" if r.slots is None else str(r.slots),
}
_UNSEEN = "fingerprint"
"""The variable when fingerprints differ and nothing that the records show does: the weights, or a setting not shown."""

NAMES = (*_ALWAYS, *_SAME_ENGINE, *CELL, _UNSEEN)
"""The variables that every record has; the names of an engine's settings are variables as well."""


def setting_names(records: Iterable[Described]) -> set[str]:
    """Return the names of the engine settings that records tell."""
    return {name for record in records for name in record.settings} - _HAVE_FIELDS


def differences(before: Sequence[Described], after: Sequence[Described]) -> list[Difference]:
    """Return in what two sides differ, or what one side holds several of; cells are left out.

    What a record does not tell ("" or none) is taken for the same. With two kinds of engines, their versions and the
    settings that go by an engine's own names do not count: they come with the engine.
    """
    found = _differing(_ALWAYS, before, after)
    if not any(difference.name == "engine" for difference in found):
        settings = {name: _setting(name) for name in sorted(setting_names([*before, *after]))}
        found += _differing({**_SAME_ENGINE, **settings}, before, after)
    return found or _differing({_UNSEEN: lambda record: record.fingerprint}, before, after)


def _setting(name: str) -> Callable[[Described], str]:
    # An engine that tells its settings, and not this one, runs without it.
    return lambda record: record.settings.get(name, "none") if record.settings else ""


def _differing(
    variables: Mapping[str, Callable[[Described], str]], before: Sequence[Described], after: Sequence[Described]
) -> list[Difference]:
    found = []
    for name, read in variables.items():
        was, now = (sorted({value for record in side if (value := read(record))}) for side in (before, after))
        several = len(was) > 1 or len(now) > 1
        if several or (was and now and was != now):
            found.append(Difference(name, " and ".join(was), " and ".join(now), several))
    return found
