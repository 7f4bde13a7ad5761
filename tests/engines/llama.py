"""One real llama.cpp server for a whole test session, however many worker processes the session has.

It runs under ``adapters.guard``, whose lifeline is a FIFO that every user holds open: when the last is gone, also by
SIGKILL, the server ends.
"""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from adapters import guard
from adapters.launch import SHARED_SPIN

ROOT = Path(__file__).parents[2]
START_LIMIT_S = 120.0
STOP_LIMIT_S = 20.0
MODEL = "smollm2"
SLOTS = 2
CONTEXT = 2048
TEMPLATE = ROOT / "scripts/engines/templates/smollm2-tools.jinja"
"""ChatML in which tools are known, so that ``tool_choice: "required"`` makes even this model call one."""


@dataclass(frozen=True)
class LlamaServer:
    """Where the server is."""

    url: str
    model: str = MODEL


def gguf() -> str:
    """The small model's path, fetched when it is not there."""
    if path := os.environ.get("PACELINE_TEST_GGUF"):
        return path
    fetch = ROOT / "scripts/engines/model"
    return subprocess.run([fetch], check=True, capture_output=True, text=True, timeout=600).stdout.strip()


@contextmanager
def shared_server(folder: Path) -> Iterator[LlamaServer]:
    """The session's server: the first that comes starts it, it ends with the last. All give the same ``folder``."""
    lifeline, record = folder / "llama.lifeline", folder / "llama.url"
    with (folder / "llama.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not lifeline.exists():
            os.mkfifo(lifeline)
        held = _hold(lifeline)
        if held is None:
            read_end = os.open(lifeline, os.O_RDONLY | os.O_NONBLOCK)
            held = os.open(lifeline, os.O_WRONLY)
            os.set_blocking(read_end, True)
            url, process = _start(folder / "llama.log", read_end)
            os.close(read_end)
            process.returncode = 0  # the lifeline ends it, perhaps after this process
            record.write_text(url)
    try:
        yield LlamaServer(record.read_text())
    finally:
        os.close(held)


@contextmanager
def own_server(log: Path, *options: str) -> Iterator[LlamaServer]:
    """A server of its own for what the shared one cannot do, with these options more."""
    url, process = _start(log, subprocess.PIPE, *options)
    try:
        yield LlamaServer(url)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(STOP_LIMIT_S)


def _hold(lifeline: Path) -> int | None:
    """Take part in holding the lifeline; ``None`` when no guard is at its other end."""
    try:
        return os.open(lifeline, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


def _start(log: Path, lifeline: int, *options: str) -> tuple[str, subprocess.Popen[bytes]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "adapters.llama_server", "--model", gguf(), "--port", str(port)]
    command += ["--parallel", str(SLOTS), "--ctx-size", str(CONTEXT), "--batch-size", "128", "--threads", "2"]
    command += ["--alias", MODEL, "--chat-template-file", str(TEMPLATE), *options]
    guarded = [sys.executable, guard.__file__, "--log", str(log), "--", *command]
    env = {**SHARED_SPIN, **os.environ}  # its waiting threads would take the cores from other tests
    process = subprocess.Popen(guarded, cwd=ROOT, stdin=lifeline, stdout=subprocess.DEVNULL, env=env)
    limit = time.monotonic() + START_LIMIT_S
    while not _healthy(f"http://127.0.0.1:{port}/health"):
        if process.poll() is not None or time.monotonic() > limit:
            process.terminate()
            process.wait(STOP_LIMIT_S)
            raise RuntimeError(f"llama.cpp did not start:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)
    return f"http://127.0.0.1:{port}", process


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
