"""Paceline starts, watches and stops a real llama.cpp."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from engines import llama
from engines.processes import runs

from adapters.base import Endpoint
from adapters.errors import Interrupted
from adapters.hardware import hardware_facts, hardware_of
from adapters.launch import LaunchError, LaunchSpec
from adapters.llamacpp import LlamaCppAdapter
from adapters.managed import Backoff, EngineState, ManagedEngine
from adapters.process import find_listener, memory_use, model_path
from adapters.transport import Transport

pytestmark = pytest.mark.llamacpp

LIMIT_S = 120.0

Start = Callable[..., ManagedEngine]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts managed llama.cpp servers that end with the test."""
    pytest.importorskip("xllamacpp", reason="NO REAL LLAMA.CPP: install paceline[llamacpp]")
    started: list[ManagedEngine] = []

    def start(model: str, on_change: Callable[[ManagedEngine], None] | None = None) -> ManagedEngine:
        spec = LaunchSpec(
            "smol", "llamacpp", model, alias="smol", context=1024, slots=2, log_file=tmp_path / "smol.log"
        )
        started.append(ManagedEngine(spec, on_change=on_change, backoff=Backoff(first_s=0.01)))
        started[-1].start()
        return started[-1]

    yield start
    for engine in started:
        await engine.stop()


async def wait_up(engine: ManagedEngine) -> int:
    """Wait until it is up and return its process."""
    async with asyncio.timeout(LIMIT_S):
        await engine.wait_up()
    assert engine.pid is not None
    return engine.pid


async def test_a_model_file_becomes_an_engine_that_describes_itself_and_answers(start: Start, tmp_path: Path) -> None:
    model = llama.gguf()
    engine = start(model)
    pid = await wait_up(engine)
    adapter = LlamaCppAdapter(Endpoint("smol", engine.url))
    described = (await adapter.describe()).models[0]
    await adapter.aclose()
    assert (described.engine_model, described.context, described.slots) == ("smol", 1024, 2)
    transport = Transport(engine.url)
    request = {"prompt": "Once upon a time", "n_predict": 4, "ignore_eos": True}
    response = await transport.request("POST", "/completion", body=json.dumps(request).encode())
    assert json.loads(await response.read())["tokens_predicted"] == 4
    await transport.aclose()
    assert find_listener(int(engine.url.rpartition(":")[2])) == pid
    assert model_path(pid) == Path(model)
    assert hardware_of(engine.url, pid).devices <= hardware_of(engine.url).devices
    assert hardware_of(engine.url, pid).host == hardware_facts().host
    used = memory_use(pid)
    assert used is not None
    assert used.host_bytes > 90_000_000  # the weights alone
    assert "listening" in (tmp_path / "smol.log").read_text()


async def test_a_killed_engine_comes_back_at_its_address(start: Start) -> None:
    ended = asyncio.Event()
    engine = start(llama.gguf(), lambda engine: ended.set() if engine.state is EngineState.RESTARTING else None)
    first, url = await wait_up(engine), engine.url
    os.kill(first, signal.SIGKILL)
    async with asyncio.timeout(LIMIT_S):
        await ended.wait()
    assert await wait_up(engine) != first
    assert engine.url == url


async def test_it_is_gone_after_stop_also_in_the_middle_of_a_long_prompt(start: Start) -> None:
    engine = start(llama.gguf())
    pid = await wait_up(engine)
    transport = Transport(engine.url)
    request = {"prompt": "the quick brown fox " * 200, "n_predict": 1, "stream": True, "return_progress": True}
    response = await transport.request("POST", "/completion", body=json.dumps(request).encode())
    assert b"prompt_progress" in await response.read_some()
    async with asyncio.timeout(engine.spec.stop_timeout_s):  # after that it would be killed
        await engine.stop()
    assert not runs(pid)
    with pytest.raises(Interrupted):
        await response.read()
    await transport.aclose()


async def test_a_file_that_is_no_model_fails_with_llama_cpps_own_words(start: Start, tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"no model" * 100)
    engine = start(str(tmp_path / "broken.gguf"))
    with pytest.raises(LaunchError, match="invalid magic"):
        await wait_up(engine)
    assert engine.state in (EngineState.RESTARTING, EngineState.FAILED)
