"""Child processes with a time limit, a log and a sign of life."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from engine_kit.errors import KitError

SIGN_OF_LIFE_S = 20.0
STOP_LIMIT_S = 5.0
KEPT_LINES = 12


def say(line: str) -> None:
    """Tell the person who waits, on stderr: stdout is for the result."""
    print(line, file=sys.stderr, flush=True)


class ChildError(KitError):
    """A child process failed; `output` is what it printed of errors, and how it ended."""

    def __init__(self, what: str, output: str) -> None:
        super().__init__(f"{what}\n{output}".rstrip())
        self.output = output


def run(command: Sequence[str | Path], *, limit_s: float, what: str, env: Mapping[str, str] | None = None) -> None:
    """Run `command` to its end, silently, with `env` added to this process's environment.

    Raises:
        ChildError: it exited with another status than 0, or ran past `limit_s` (it and its children are ended then).
    """
    say(what)
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        child = subprocess.Popen(
            [str(part) for part in command],
            env=os.environ | dict(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = _wait(child, limit_s)
        finally:
            _end(child)
        if status == 0:
            return
        log.seek(0)
        output = _telling(log.read().splitlines())
    ended = f"ran past {limit_s:g} s" if status is None else f"failed with status {status}"
    raise ChildError(f"{Path(command[0]).name} {ended} ({what})", output)


def _telling(lines: list[str]) -> str:
    end = lines[-KEPT_LINES:]
    # Compilers that run side by side bury the error under the warnings of others.
    errors = [line for line in lines[:-KEPT_LINES] if "error" in line.lower()]
    return "\n".join([*errors[:KEPT_LINES], *end])


def _wait(child: subprocess.Popen[bytes], limit_s: float) -> int | None:
    start = time.monotonic()
    while (left_s := start + limit_s - time.monotonic()) > 0:
        with suppress(subprocess.TimeoutExpired):
            return child.wait(min(SIGN_OF_LIFE_S, left_s))
        say(f"  … {time.monotonic() - start:.0f} s")
    return None


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(STOP_LIMIT_S)
            return
