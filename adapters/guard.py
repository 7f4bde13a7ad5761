"""The process between Paceline and an engine that it starts: ``python -m adapters.guard [options] -- COMMAND…``.

It keeps the engine's log and makes sure that nothing of the engine outlives Paceline, not even when that is killed:

- its standard input is the lifeline: when it ends (its owner closed it, or is gone), or on SIGTERM, so does the engine;
- the engine has a session of its own; ending it means SIGTERM to it and all its descendants, SIGKILL after a limit;
- on Linux, descendants that made themselves independent are found as well, and the engine dies with a killed guard;
- what the engine prints goes to a file of bounded size; a full or broken disk loses lines and never holds it up;
- standard output tells the owner, one JSON object a line: ``{"pid": …}`` once the engine runs, and at the end
  ``{"status": …, "tail": …}``: its exit status (negative: the signal that ended it) and the last that it printed.

Run as a file, it needs nothing but the standard library, neither site-packages nor this package.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

LIFELINE = 0
TAIL_BYTES = 8192
KILL_LIMIT_S = 5.0
"""How long killed processes are waited for: one that hangs in the kernel cannot be ended by anybody."""
LOOK_EVERY_S = 0.05
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LINUX = sys.platform == "linux"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command under guard. Returns its exit status (128 + n when signal n ended it), 127 when it cannot start."""
    parser = argparse.ArgumentParser(
        prog="python -m adapters.guard", description="Run an engine that cannot outlive us"
    )
    parser.add_argument("--log", type=Path, help="append what the command prints to this file")
    parser.add_argument("--log-bytes", type=int, default=8 << 20, help="size at which FILE becomes FILE.1")
    parser.add_argument("--stop-limit-s", type=float, default=10.0, help="seconds between SIGTERM and SIGKILL")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(argv)
    output = Output(options.log, options.log_bytes)
    try:
        guard = Guard(options.command, output)
    except OSError as error:
        _tell(status=127, tail=f"{options.command[0]}: {error.strerror or error}")
        return 127
    _tell(pid=guard.pid)
    try:
        guard.watch()
    finally:
        guard.end(options.stop_limit_s)
    _tell(status=guard.status, tail=output.tail)
    return 128 - guard.status if guard.status < 0 else guard.status


class Output:
    """What the engine prints: its last bytes in memory, and a file that is moved aside when it is full."""

    def __init__(self, path: Path | None, limit: int) -> None:
        self._path = path
        self._limit = limit
        self._tail = b""
        self._fd: int | None = None
        self._size = 0

    @property
    def tail(self) -> str:
        """The end of it, whole lines where possible."""
        text = self._tail.decode(errors="replace")
        return text if len(self._tail) < TAIL_BYTES else text.partition("\n")[2] or text

    def add(self, data: bytes) -> None:
        """Take in what was printed."""
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        if self._path is not None:
            try:
                self._write(self._path, data)
            except OSError:  # the engine goes first: lines are lost, and the next ones are tried again
                self._close()

    def _write(self, path: Path, data: bytes) -> None:
        if self._fd is not None and self._size + len(data) > self._limit:
            self._close()
            path.replace(f"{path}.1")
        if self._fd is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._size = os.fstat(self._fd).st_size
        self._size += os.write(self._fd, data)

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class Guard:
    """One engine process and all that comes from it."""

    def __init__(self, command: Sequence[str], output: Output) -> None:
        """Start the command. Raises OSError."""
        self.status = 0
        self._output = output
        self._alive = True
        self._wakeup, wake = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._asked_to_stop = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._ask_to_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes the selector
        if _LINUX:
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._pipe, printed = os.pipe()
        os.set_blocking(self._pipe, False)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            start_new_session=True,
            preexec_fn=_die_with_guard if _LINUX else None,
        )
        os.close(printed)
        self.pid = process.pid
        self._process = process

    def watch(self) -> None:
        """Return once the engine has ended, or is to be ended."""
        sources = [self._pipe, self._wakeup, LIFELINE]
        while self._alive and not self._asked_to_stop:
            ready = select.select(sources, (), ())[0]
            if self._pipe in ready and self._read_output():
                sources.remove(self._pipe)
            if self._wakeup in ready:
                _drain(self._wakeup)
                self._reap()
            if LIFELINE in ready and not os.read(LIFELINE, 4096):
                return

    def end(self, limit_s: float) -> None:
        """End the engine and its descendants: politely, and after ``limit_s`` by force."""
        for number, patience_s in ((signal.SIGTERM, limit_s), (signal.SIGKILL, KILL_LIMIT_S)):
            deadline = time.monotonic() + patience_s
            self._send(number)
            while not self._gone():
                if time.monotonic() > deadline:
                    break
                if number is signal.SIGKILL:
                    self._send(number)  # again: one may have been forked meanwhile
                self._pause()
            else:
                break
        self._read_output()

    def _ask_to_stop(self, *_: object) -> None:
        self._asked_to_stop = True

    def _read_output(self) -> bool:
        """Take some of what has been printed: all that a pipe holds. Returns whether that was the end."""
        try:
            data = os.read(self._pipe, 65536)
        except BlockingIOError:
            return False
        self._output.add(data)
        return not data

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == self.pid:
                    self._alive = False
                    self.status = self._process.returncode = os.waitstatus_to_exitcode(status)

    def _gone(self) -> bool:
        self._reap()
        if self._alive:
            return False
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return not _descendants()
        except PermissionError:  # macOS says so of a group in which only zombies are left
            return True
        return False

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
        for pid in _descendants():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _pause(self) -> None:
        """Wait for a moment, or for a child that ends. The engine may still print: it must not block on that."""
        self._read_output()
        select.select([self._wakeup], (), (), LOOK_EVERY_S)
        _drain(self._wakeup)


def _descendants() -> list[int]:
    """All processes below this one. Empty where there is no /proc: the group has to be enough there."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if _LINUX else ():  # noqa: PTH208
        if name.isdecimal():
            with contextlib.suppress(OSError):
                stat = Path("/proc", name, "stat").read_bytes()
                children.setdefault(int(stat.rpartition(b")")[2].split()[1]), []).append(int(name))
    found = children.get(os.getpid(), [])
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def _die_with_guard() -> None:
    guard = os.getppid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:  # it died before that took effect
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def _drain(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(fd, 4096)


def _tell(**message: object) -> None:
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
