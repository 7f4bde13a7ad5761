"""Requests from a file, sent so that their answers are kept."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.cli.output import UserError
from gateway.cli.running import KEY_VARIABLE

LIMIT_S = 600.0
_PATHS = {"messages": "/v1/chat/completions", "prompt": "/v1/completions", "input": "/v1/embeddings"}

Request = tuple[int, str, dict[str, Any]]
"""The line's number, the path, and the body."""


def read_requests(file: Path) -> list[Request]:
    """Return the requests of a JSON Lines file. Raises ``UserError`` that names the first wrong line."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None
    return [_request(file, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _request(file: Path, number: int, line: str) -> Request:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}, line {number}: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{file}, line {number}: a request is a JSON object")
    body: dict[str, Any] = value["body"] if isinstance(value.get("body"), dict) else value
    path = next((path for name, path in _PATHS.items() if name in body), None)
    if path is None:
        raise UserError(f"{file}, line {number}: it has no messages, prompt or input")
    return number, path, body


def warm_up(url: str, requests: list[Request], at_once: int, *, quiet: bool) -> dict[str, Any]:
    """Send the requests; returns how many were hits, misses, …, and the ``failures``, each with its line."""
    outcomes: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    lock = threading.Lock()
    with _progress(len(requests), quiet=quiet) as step, ThreadPoolExecutor(at_once) as pool:

        def send(request: Request) -> None:
            outcome, why = _send(url, request)
            with lock:
                outcomes[outcome] += 1
                if why:
                    failures.append({"line": request[0], "why": why})
                step()

        for done in [pool.submit(send, request) for request in requests]:
            done.result()
    return {"outcomes": dict(outcomes), "failures": sorted(failures, key=lambda failure: int(failure["line"]))}


def _send(url: str, request: Request) -> tuple[str, str]:
    """Return what the cache said, and what went wrong."""
    _, path, body = request
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=LIMIT_S)
    headers = {"content-type": "application/json"}
    if key := os.environ.get(KEY_VARIABLE):
        headers["authorization"] = f"Bearer {key}"
    try:
        connection.request("POST", parts.path + path, json.dumps({**body, "stream": False}), headers)
        response = connection.getresponse()
        data = response.read()
    except (OSError, http.client.HTTPException) as error:
        return "failed", f"{url}: {error or type(error).__name__}"
    finally:
        connection.close()
    if response.status != 200:
        return "failed", _message(data) or f"status {response.status}"
    return response.headers.get("x-paceline-cache", "off"), ""


def _message(data: bytes) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(data)["error"]["message"])
    return ""


@contextlib.contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[Any]:
    """A bar on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=quiet) as bar:
        task = bar.add_task("warming", total=total)
        yield lambda: bar.advance(task)
