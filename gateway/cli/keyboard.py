"""Single keys from a terminal, without Return."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType

QUIT = (b"q", b"Q", b"\x04")


class Keys:
    """What is pressed while ``single_keys`` runs."""

    def __init__(self) -> None:
        self._interrupted = False

    def interrupt(self, _number: int, _frame: FrameType | None) -> None:
        """Ctrl+C: raise ``KeyboardInterrupt``, and remember it, since Python drops what is raised while an object is
        being deleted."""
        self._interrupted = True
        raise KeyboardInterrupt

    def quit_pressed(self, wait_s: float) -> bool:
        """Return whether q or Ctrl+C was pressed within a time; waits all of it otherwise."""
        if self._interrupted:
            return True
        if sys.platform == "win32" or not sys.stdin.isatty():
            time.sleep(wait_s)
            return self._interrupted
        import os
        import select

        end = time.monotonic() + wait_s
        while (left_s := end - time.monotonic()) > 0:
            if select.select([sys.stdin], [], [], left_s)[0] and os.read(sys.stdin.fileno(), 64) in QUIT:
                return True
        return self._interrupted


@contextlib.contextmanager
def single_keys() -> Iterator[Keys]:
    """Have the terminal give each key at once, without showing it, while the block runs. Not on Windows."""
    keys = Keys()
    before = signal.signal(signal.SIGINT, keys.interrupt)
    try:
        with _unbuffered():
            yield keys
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _unbuffered() -> Iterator[None]:
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    tty.setcbreak(number)
    try:
        yield
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
