"""Starting and stopping the upstream and the gateways, and looking at what they use."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from benchmarks.overhead.load import cpu_s, request_content, request_headers
from benchmarks.overhead.targets import Site, Target

ROOT: Final = Path(__file__).parents[2]
START_LIMIT_S: Final = 60.0
SETTLE_LIMIT_S: Final = 120.0
"""For work of its own that a gateway does after its start: Paceline measures what it has no record of."""
STOP_LIMIT_S: Final = 15.0


class StartError(Exception):
    """A gateway did not come to answer a chat request."""


@dataclass(frozen=True, slots=True)
class Running:
    """A gateway that answers. ``pid`` is 0 for the upstream itself."""

    name: str
    port: int
    pid: int = 0
    start_s: float = 0.0

    def rss_mb(self) -> float:
        """Resident memory of the process and its children, in MB (shared pages counted in each)."""
        if not self.pid:
            return 0.0
        process = psutil.Process(self.pid)
        return sum(member.memory_info().rss for member in [process, *process.children(recursive=True)]) / 1e6


@contextlib.contextmanager
def upstreams(count: int) -> Iterator[list[int]]:
    """Start the raw upstream on ``count`` ports."""
    command = [sys.executable, "-m", "benchmarks.overhead.upstream", str(count)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


@contextlib.contextmanager
def gateway(target: Target, program: str, ports: list[int], folder: Path) -> Iterator[Running]:
    """Start a gateway and wait until it answers a chat request, then until it is idle. Raises StartError."""
    folder.mkdir()
    site = Site(free_port(), ports, free_port(), folder)
    log = folder / "log"
    environment = os.environ | target.environment
    with log.open("wb") as output:
        began = time.perf_counter()
        process = subprocess.Popen(
            [program, *target.arguments(site)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
    try:
        if not _answers_within(process, site.port, began + START_LIMIT_S):
            raise StartError(f"{target.name} does not answer: {_last_lines(log)}")
        start_s = time.perf_counter() - began
        _settle(process.pid)
        yield Running(target.name, site.port, process.pid, start_s)
    finally:
        _stop(process)


def free_port() -> int:
    """A TCP port on the loopback interface that nothing listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _answers_within(process: subprocess.Popen[bytes], port: int, deadline: float) -> bool:
    while time.perf_counter() < deadline and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
            connection.request("POST", "/v1/chat/completions", request_content(stream=False), request_headers())
            if connection.getresponse().status == 200:
                return True
        time.sleep(0.02)
    return False


def _settle(pid: int) -> None:
    """Wait until the process uses next to no CPU for a second."""
    deadline = time.perf_counter() + SETTLE_LIMIT_S
    before = cpu_s(pid)
    while time.perf_counter() < deadline:
        time.sleep(1)
        now = cpu_s(pid)
        if now - before < 0.05:
            return
        before = now


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it leads a session of its own
        process.wait()


def _last_lines(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return " | ".join(lines[-3:]) or "it printed nothing"
