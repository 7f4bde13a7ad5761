"""One real llama.cpp server for a whole test session, however many worker processes the session has."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
START_LIMIT_S = 120.0
MODEL = "smollm2"
SLOTS = 2
CONTEXT = 2048
TEMPLATE = ROOT / "scripts/engines/templates/smollm2-tools.jinja"
"""ChatML in which tools are known, so that ``tool_choice: "required"`` makes even this model call one."""


@dataclass(frozen=True)
class LlamaServer:
    """Where the server is; its process is the group leader of all that it started."""

    url: str
    pid: int
    model: str = MODEL


def gguf() -> str:
    """The small model's path, fetched when it is not there."""
    if path := os.environ.get("PACELINE_TEST_GGUF"):
        return path
    fetch = ROOT / "scripts/engines/model"
    return subprocess.run([fetch], check=True, capture_output=True, text=True, timeout=600).stdout.strip()


@contextmanager
def shared_server(folder: Path) -> Iterator[LlamaServer]:
    """The session's server: the first that comes starts it, the last that goes stops it."""
    with _locked(folder / "llama.json") as state:
        record = _load(state) or {"server": asdict(_start(folder / "llama.log")), "users": 0}
        _save(state, {**record, "users": record["users"] + 1})
    server = LlamaServer(**record["server"])
    try:
        yield server
    finally:
        with _locked(folder / "llama.json") as state:
            record = _load(state)
            _save(state, {**record, "users": record["users"] - 1} if record["users"] > 1 else None)
            if record["users"] == 1:
                _stop(server.pid)


@contextmanager
def own_server(log: Path, *options: str) -> Iterator[LlamaServer]:
    """A server of its own for what the shared one cannot do, with these options more."""
    server = _start(log, *options)
    try:
        yield server
    finally:
        _stop(server.pid)


def _start(log: Path, *options: str) -> LlamaServer:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "adapters.llama_server", "--model", gguf(), "--port", str(port)]
    command += ["--parallel", str(SLOTS), "--ctx-size", str(CONTEXT), "--batch-size", "128", "--threads", "2"]
    command += ["--alias", MODEL, "--chat-template-file", str(TEMPLATE), *options]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, start_new_session=True)
    limit = time.monotonic() + START_LIMIT_S
    while not _healthy(f"http://127.0.0.1:{port}/health"):
        if process.poll() is not None or time.monotonic() > limit:
            process.kill()
            process.wait()
            raise RuntimeError(f"llama.cpp did not start:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)
    process.returncode = 0  # whoever goes last ends it, perhaps another process: this object is not its owner
    return LlamaServer(f"http://127.0.0.1:{port}", process.pid)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _stop(pid: int) -> None:
    for number, patience_s in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            return
        limit = time.monotonic() + patience_s
        while time.monotonic() < limit:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            try:
                os.killpg(pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.05)


@contextmanager
def _locked(path: Path) -> Iterator[IO[str]]:
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def _load(file: IO[str]) -> dict:  # type: ignore[type-arg]
    file.seek(0)
    text = file.read()
    return json.loads(text) if text else {}


def _save(file: IO[str], record: object) -> None:
    file.truncate(0)
    if record is not None:
        file.write(json.dumps(record))
