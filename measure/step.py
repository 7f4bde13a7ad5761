"""How a benchmark tells how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from measure.records import Record


@dataclass(frozen=True, slots=True)
class Step:
    """Where a benchmark stands: the deployment at work and what it does now, ``done`` of ``total`` cells of the whole
    benchmark (the total changes as concurrency proves worth raising or not), and the seconds that are probably left.
    ``record`` is a cell that has just been measured, or ``kept`` from the same benchmark before it was interrupted."""

    deployment: str
    note: str
    done: int
    total: int
    left_s: float | None = None
    record: Record | None = None
    kept: bool = False


Tell = Callable[[Step], None]
"""Called on the event loop; has to return at once."""
