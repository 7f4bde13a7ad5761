"""Waiting for other processes to end."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import psutil
from engines.signals import LIMIT_S


def wait_gone(pids: Iterable[int], limit_s: float = LIMIT_S) -> None:
    """Return once none of these processes runs any more. Raises AssertionError after ``limit_s``."""
    deadline = time.monotonic() + limit_s
    left = set(pids)
    while left := {pid for pid in left if runs(pid)}:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.02)


def runs(pid: int) -> bool:
    """Whether a process is there and has not ended. One that nobody has reaped yet has ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pids_in(file: Path) -> list[int]:
    """The process ids that a little engine has written down."""
    return [int(word) for word in file.read_text().split()]
