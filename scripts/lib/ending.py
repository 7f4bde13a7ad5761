"""How a script ends that was asked to: as after Ctrl+C, so that what it started ends with it."""

from __future__ import annotations

import signal
import sys
from types import FrameType

TERMINATED = 128 + signal.SIGTERM
"""The exit status of who was ended by SIGTERM."""


def end_when_terminated() -> None:
    """From now on SIGTERM leaves every ``with`` and ``finally`` of this process; without it, children stay behind."""
    signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(TERMINATED)
