"""A process that cannot outlive this one: started by, and ended with, a guard (see ``adapters.guard``)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from adapters.launch import Command, LaunchError, LaunchSpec

START_LIMIT_S = 15.0
GUARD_LIMIT_S = 10.0
"""How much longer than the engine's own limit its guard may take."""
LAST_LINES = 12


class GuardedProcess:
    """An engine's process. ``ended`` is set once it and all that came from it are gone."""

    def __init__(self, guard: asyncio.subprocess.Process, pid: int, stop_timeout_s: float) -> None:
        self.pid = pid
        self.ended = asyncio.Event()
        self._guard = guard
        self._limit_s = stop_timeout_s + GUARD_LIMIT_S
        self._report: dict[str, Any] = {}
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name=f"guard of {pid}")

    @classmethod
    async def start(cls, command: Command, spec: LaunchSpec) -> GuardedProcess:
        """Start a command. Raises LaunchError when it does not even begin to run."""
        # As a file and isolated: it starts in a few hundredths of a second, from any folder.
        guard = [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py"))]
        guard += ["--stop-limit-s", str(spec.stop_timeout_s)]
        if spec.log_file is not None:
            guard += ["--log", str(spec.log_file), "--log-bytes", str(spec.log_bytes)]
        # Paceline's own settings may hold keys, and mean nothing to an engine.
        env = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
        try:
            process = await asyncio.create_subprocess_exec(
                *guard,
                "--",
                *command.argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=env | dict(command.env),
                start_new_session=True,  # Ctrl-C is for Paceline, which lets running answers finish first
            )
        except OSError as error:
            raise LaunchError(f"cannot start a process: {error}") from error
        try:
            async with asyncio.timeout(START_LIMIT_S):
                first = await _next_report(process)
        except TimeoutError:
            first = {"tail": f"no sign of life within {START_LIMIT_S:g} s"}
        except asyncio.CancelledError:
            _close_lifeline(process)
            raise
        if "pid" not in first:
            _close_lifeline(process)
            await process.wait()
            raise LaunchError(f"cannot start {command.argv[0]}: {first.get('tail', 'its guard did not start')}")
        return cls(process, first["pid"], spec.stop_timeout_s)

    @property
    def log(self) -> str:
        """The last lines that it printed. Known once it has ended."""
        return "\n".join(str(self._report.get("tail", "")).splitlines()[-LAST_LINES:])

    def epitaph(self) -> LaunchError:
        """How it ended."""
        status = self._report.get("status")
        if status is None:
            return LaunchError("its guard was killed, and it with it", log=self.log)
        if status < 0:
            return LaunchError(f"killed by {signal.Signals(-status).name}", log=self.log)
        return LaunchError(f"ended with status {status}", log=self.log)

    async def end(self) -> None:
        """End it and wait until all of it is gone: politely, by force after the limit. Safe to call at any time."""
        _close_lifeline(self._guard)
        if not (await asyncio.wait({self._watching}, timeout=self._limit_s))[0]:
            with contextlib.suppress(ProcessLookupError):
                self._guard.kill()
            await asyncio.wait({self._watching}, timeout=GUARD_LIMIT_S)
        self._watching.cancel()
        await asyncio.wait({self._watching})

    async def _watch(self) -> None:
        self._report = await _next_report(self._guard)
        await self._guard.wait()
        if not self._report:  # the guard was killed; where the engine does not die with it, do it here
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self.ended.set()


async def _next_report(guard: asyncio.subprocess.Process) -> dict[str, Any]:
    """What a guard says next; empty at its end."""
    assert guard.stdout is not None
    line = await guard.stdout.readline()
    return json.loads(line) if line else {}


def _close_lifeline(guard: asyncio.subprocess.Process) -> None:
    assert guard.stdin is not None
    guard.stdin.close()
