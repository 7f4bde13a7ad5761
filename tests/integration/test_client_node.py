"""The official OpenAI client for Node.js, pinned and unmodified, against a gateway: streams, tools, errors, leaving."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engines.scripted import ScriptedEngine
from engines.scripts import chat, cut, stall
from gateways import Gateway, engine_at

CLIENT = Path(__file__).parents[1] / "clients-node"
FETCH_LIMIT_S = 120.0
RUN_LIMIT_S = 60.0

CALL = [
    {"tool_calls": [{"index": 0, "id": "call-1", "type": "function", "function": {"name": "look", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"at":'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '"the sky"}'}}]},
]


@pytest.fixture(scope="module")
def program() -> Path:
    """The client's program beside its packages, in a cache folder of its own: the checkout stays as it is."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("NO NODE.JS: node and npm are not on the PATH, so its OpenAI client was not tried")
    files = [CLIENT / name for name in ("package.json", "package-lock.json", "client.mjs")]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline"
    caches.mkdir(parents=True, exist_ok=True)
    folder = caches / f"clients-node-{digest}"
    with (caches / "clients-node.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            folder.mkdir(exist_ok=True)
            for file in files:
                shutil.copy(file, folder)
            command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
            made = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=FETCH_LIMIT_S, check=False
            )
            assert made.returncode == 0, made.stderr
            (folder / "done").touch()
    return folder / "client.mjs"


def run(program: Path, url: str) -> dict[str, Any]:
    done = subprocess.run(
        ["node", program.name, url],
        cwd=program.parent,
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


async def test_the_node_client_works_unmodified(
    program: Path, scripted: Callable[..., ScriptedEngine], gateway: Callable[..., Gateway]
) -> None:
    engine = scripted(kind="vllm")
    engine.next(chat(), chat(), chat(CALL, finish="tool_calls"), chat(), cut(after=2), stall(after=1))
    running = gateway(engines=[engine_at(engine, "a")])
    said = await asyncio.to_thread(run, program, running.url)
    assert said["models"] == ["m"]
    assert said["whole"] == {"text": "Hello!", "model": "m", "tokens": 3}
    assert (said["stream"], said["streamTokens"]) == ("Hello!", 3)
    assert said["tool"]["name"] == "look"
    assert json.loads(said["tool"]["arguments"]) == {"at": "the sky"}
    assert said["toolFinish"] == "tool_calls"
    assert (said["deployment"], said["whole2"]) == ("a", "Hello!")
    unknown, wrong, cut_short = said["unknown"], said["wrong"], said["cut"]
    assert (unknown["kind"], unknown["status"], unknown["code"]) == ("NotFoundError", 404, "model_not_found")
    assert (wrong["kind"], wrong["status"]) == ("BadRequestError", 400)
    assert "'n'" in wrong["message"]
    assert cut_short["kind"] == "APIError", "half an answer is not taken for a whole one"
    assert cut_short["code"] == "engine_interrupted"
    received = await engine.received(5)
    await received.left.wait()
    assert len(engine.requests) == 6, "nothing was retried"
    assert engine.requests[0].json["seed"] == 7
