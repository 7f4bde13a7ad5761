"""Single keys from a terminal, without Return."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator


@contextlib.contextmanager
def single_keys() -> Iterator[None]:
    """Have the terminal give each key at once, without showing it, while the block runs. Not on Windows."""
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


def quit_pressed(wait_s: float) -> bool:
    """Return whether q was pressed within a time; waits all of it otherwise."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        time.sleep(wait_s)
        return False
    import os
    import select

    end = time.monotonic() + wait_s
    while (left_s := end - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left_s)[0] and os.read(sys.stdin.fileno(), 64) in (b"q", b"Q", b"\x04"):
            return True
    return False
