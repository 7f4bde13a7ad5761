"""The candidates of a decision, made when they are looked at: most requests need the first alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from policies.reasons import Row, explain_next
from policies.types import Candidate


class Ranked(Sequence[Candidate]):
    """Candidates in the order in which they will be tried: ``first``, then all rows but ``head``."""

    __slots__ = ("_first", "_head", "_rows")

    def __init__(self, first: Candidate, rows: list[Row], head: int) -> None:
        self._first = first
        self._rows = rows
        self._head = head

    @overload
    def __getitem__(self, place: int) -> Candidate: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Candidate, ...]: ...
    def __getitem__(self, place: int | slice) -> Candidate | tuple[Candidate, ...]:
        if place == 0:
            return self._first
        if isinstance(place, slice):
            return tuple(self[i] for i in range(*place.indices(len(self))))
        i = range(len(self))[place]
        if i == 0:
            return self._first
        row = self._rows[i if i > self._head else i - 1]
        return Candidate(row.option.deployment, row.estimate, explain_next(row), row.load.cached_tokens)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Candidate]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]
