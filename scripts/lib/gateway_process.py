"""The gateway as a process of its own: started, watched while it measures, and stopped with all that it started."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

READY_LIMIT_S = 400.0
STOP_LIMIT_S = 30.0
POLL_S = 0.25


class GatewayFailed(Exception):
    """The gateway ended, or did not become ready in time; the message has the end of its log."""


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
        """Show a progress bar until every engine is up and measured. Raises ``GatewayFailed``."""
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        deadline = time.monotonic() + READY_LIMIT_S
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
                if time.monotonic() > deadline:
                    raise self._failed(
                        f"was not ready within {READY_LIMIT_S:g} s; up: {', '.join(sorted(up)) or 'none'}"
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
