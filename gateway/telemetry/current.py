"""Which request the running code works for, so that every line of the log can say so."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final, NamedTuple


class Current(NamedTuple):
    """The ids of a request; ``trace_id`` is "" where there is no trace."""

    request_id: str
    trace_id: str


CURRENT: Final[ContextVar[Current | None]] = ContextVar("paceline_request", default=None)
"""Set once at a request's beginning, in the task that serves it; tasks that it starts see it as well."""
