"""The gateway as a process of its own: started, watched while it measures, and stopped with all that it started."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

READY_LIMIT_S = 1500.0
STILL_LIMIT_S = 240.0
"""Without an engine that comes up or a step of a measurement. How long all of it takes depends on how many engines
there are, and on how they get on with each other: a pair that fights for the cores needs minutes."""
STOP_LIMIT_S = 30.0
POLL_S = 0.25


class GatewayFailed(Exception):
    """The gateway ended, or did not become ready in time; the message has the end of its log."""


class Patience:
    """How long to wait for something that tells how far it is: while there is news, up to a limit for all of it."""

    def __init__(self, still_limit_s: float, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._still_limit_s = still_limit_s
        self._clock = clock
        self._end = clock() + limit_s
        self._still_end = clock() + still_limit_s
        self._news: object = None

    def is_over(self, news: object) -> bool:
        """Whether it has been too long: in all, or since ``news`` was last another."""
        if news != self._news:
            self._news = news
            self._still_end = self._clock() + self._still_limit_s
        return self._clock() > min(self._end, self._still_end)


class Gateway:
    """``paceline up`` with a configuration; its log goes to a file."""

    def __init__(self, config: Path, log: Path) -> None:
        self._config = config
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self._family: list[psutil.Process] = []
        self.url = ""

    def __enter__(self) -> Gateway:
        command = [str(Path(sys.executable).with_name("paceline")), "up", "--config", str(self._config), "--json"]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.url = self._read_url()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _read_url(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        text = ""
        for line in self._process.stdout:
            text += line
            try:
                return str(json.loads(text)["url"])
            except ValueError:
                continue
        raise self._failed("ended at once")

    def wait_until_measured(self, console: Console, names: set[str]) -> None:
        """Show a progress bar until every engine is up and measured.

        Raises ``GatewayFailed`` when there is no progress for ``STILL_LIMIT_S``, and in any case after
        ``READY_LIMIT_S``.
        """
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        patience = Patience(STILL_LIMIT_S, READY_LIMIT_S)
        with Progress(*columns, console=console, transient=not console.is_terminal) as progress:
            task = progress.add_task("Loading models", total=None)
            while True:
                state = self.get("/admin/fleet")
                entries, measuring = state["deployments"], state["measuring"]
                up = {entry["endpoint"] for entry in entries if entry["state"] in ("up", "unmeasured")}
                if names <= up:
                    total = measuring["done"] + measuring["left"]
                    now = measuring["now"] or "Measuring"
                    progress.update(task, description=now, completed=measuring["done"], total=total or None)
                    if measuring["settled"]:
                        progress.update(task, description="Measured", completed=total or 1, total=total or 1)
                        return
                else:
                    progress.update(task, description=f"Loading models ({len(up & names)} of {len(names)} are up)")
                if patience.is_over((up, measuring["done"], measuring["now"])):
                    raise self._failed(
                        f"is not ready, and it has been too long; up: {', '.join(sorted(up)) or 'none'}, "
                        f"measured: {measuring['done']}, now: {measuring['now'] or 'nothing'}"
                    )
                time.sleep(POLL_S)

    def deployments(self) -> list[dict[str, Any]]:
        """Return the deployments as ``GET /admin/fleet`` has them."""
        return list(self.get("/admin/fleet")["deployments"])

    @property
    def pid(self) -> int:
        """The process id of the gateway itself."""
        assert self._process is not None
        return self._process.pid

    def processes(self) -> list[psutil.Process]:
        """Return all processes that the gateway has started."""
        assert self._process is not None
        self._family = psutil.Process(self._process.pid).children(recursive=True)
        return self._family

    def wait(self) -> None:
        """Return when the gateway has ended, or at Ctrl+C."""
        assert self._process is not None
        try:
            self._process.wait()
        except KeyboardInterrupt:
            return

    def stop(self) -> list[int]:
        """Stop it as an operator would. Returns the ids of processes that are left, which should be none."""
        process = self._process
        if process is None:
            return []
        if process.poll() is None:
            self.processes()
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        _, left = psutil.wait_procs(self._family, timeout=STOP_LIMIT_S)
        return [each.pid for each in left]

    def get(self, path: str) -> dict[str, Any]:
        """Return the JSON at a path of the gateway. Raises ``GatewayFailed`` when it does not answer."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as response:
                answer: dict[str, Any] = json.load(response)
                return answer
        except (urllib.error.URLError, OSError) as error:
            raise self._failed(f"does not answer: {error}") from None

    def _failed(self, what: str) -> GatewayFailed:
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-12:])
        return GatewayFailed(f"the gateway {what}\n{tail}")
