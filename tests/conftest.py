"""What all tests share: scripted engines, and one real llama.cpp a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import valkeys
from engines import llama
from engines.scripted import ScriptedEngine
from gateways import Gateway
from hypothesis import settings

settings.register_profile("quick", max_examples=40, deadline=None)
settings.register_profile("thorough", max_examples=100, deadline=None)
settings.load_profile("quick")


@pytest.fixture
def scripted() -> Iterator[Callable[..., ScriptedEngine]]:
    """Starts scripted engines (``scripted(kind="vllm")``) that end with the test."""
    started: list[ScriptedEngine] = []

    def start(**options: object) -> ScriptedEngine:
        started.append(ScriptedEngine(**options).start())  # type: ignore[arg-type]
        return started[-1]

    yield start
    for engine in started:
        engine.stop()


@pytest.fixture
def valkey() -> Iterator[Callable[..., valkeys.Valkey]]:
    """Starts real Valkeys (``valkey(tcp=True)``) that end with the test."""
    if why := valkeys.available():
        pytest.skip(why)
    started: list[valkeys.Valkey] = []

    def start(**options: object) -> valkeys.Valkey:
        started.append(valkeys.Valkey(**options))  # type: ignore[arg-type]
        return started[-1].start()

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def llamacpp(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[llama.LlamaServer]:
    """One real llama.cpp for the session: 2 slots of 2048 tokens, prompt batches of 128, tools in its template."""
    pytest.importorskip("xllamacpp", reason="NO REAL LLAMA.CPP: install paceline[llamacpp]")
    base = tmp_path_factory.getbasetemp()
    with llama.shared_server(base if worker_id == "master" else base.parent) as server:
        yield server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that watch the slots of a real engine run one after the other, in one worker (``--dist loadgroup``)."""
    for item in items:
        for marker in ("llamacpp", "builtin", "vllm", "ollama", "mlx"):
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.xdist_group(marker))


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Callable[..., Gateway]]:
    """Starts whole gateways (``gateway(engines=[engine_at(engine, "a")])``) that end with the test."""
    started: list[Gateway] = []

    def start(**settings: Any) -> Gateway:
        started.append(Gateway(tmp_path / f"gateway-{len(started)}", **settings))
        return started[-1]

    yield start
    for each in started:
        each.stop()
