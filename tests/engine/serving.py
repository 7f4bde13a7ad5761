"""The engine as a process of its own, as users run it."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from openai import OpenAI

LIMIT_S = 120.0
NAME = "small"


@dataclass
class Served:
    """A process that serves; ``seen`` are the states that /ready told while it loaded."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path
    seen: list[dict[str, Any]] = field(default_factory=list)

    @property
    def client(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=LIMIT_S)

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=LIMIT_S)

    def gauge(self, name: str) -> float:
        text = httpx.get(f"{self.url}/metrics", timeout=LIMIT_S).text
        found = re.search(rf"^paceline_engine_{name} (\S+)$", text, re.M)
        assert found, f"no gauge {name}"
        return float(found[1])

    def until(self, condition: Any, what: str) -> None:
        """Poll until ``condition()`` is true."""
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {LIMIT_S:g} s"
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)

    def idle(self) -> bool:
        return not (self.gauge("requests_running") or self.gauge("requests_waiting"))


def start(model: Path, log: Path, *options: str) -> tuple[subprocess.Popen[bytes], str]:
    """The process, and where it will listen."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "engine", "--model", str(model), "--port", str(port), *options]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, cwd=Path(__file__).parents[2], start_new_session=True
        )
    return process, f"http://127.0.0.1:{port}"


@contextmanager
def serving(model: Path, log: Path, *options: str) -> Iterator[Served]:
    """A process that has loaded its model; ended afterwards, if it has not ended itself."""
    process, url = start(model, log, "--served-name", NAME, *options)
    served = Served(process, url, log)
    try:

        def ready() -> bool:
            try:
                answer = httpx.get(f"{served.url}/ready", timeout=LIMIT_S)
            except httpx.ConnectError:
                return False
            served.seen.append({**answer.json(), "http": answer.status_code})
            return answer.status_code == 200

        served.until(ready, "the model is loaded")
        yield served
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
