"""Open files: each request holds two connections, and a process that runs out of them falls over."""

from __future__ import annotations

import contextlib
import resource
from dataclasses import dataclass

from gateway.settings import LimitSettings

OTHER_FILES = 256
"""Logs, databases, idle connections to engines, engines' pipes."""


@dataclass(frozen=True, slots=True)
class FileLimit:
    """The process's limit now (``soft``) and what it may be raised to (``hard``)."""

    soft: int
    hard: int


def needed_files(limits: LimitSettings) -> int:
    """Return how many files may be open at the most: client and engine for those that run, client for the queue."""
    return 2 * limits.max_concurrent + limits.queue + OTHER_FILES


def file_limit() -> FileLimit:
    """Return this process's limits."""
    soft, hard = (_finite(limit) for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    return FileLimit(soft, hard)


def raise_file_limit(needed: int) -> bool:
    """Raise the limit as far as is allowed, at most to ``needed``. Returns whether that is enough."""
    limit = file_limit()
    if limit.soft >= needed:
        return True
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, limit.hard), limit.hard))
    return limit.hard >= needed


def _finite(limit: int) -> int:
    return 1 << 30 if limit == resource.RLIM_INFINITY else limit
