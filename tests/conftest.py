"""What all tests share: scripted engines, and one real llama.cpp a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from engines.scripted import ScriptedEngine


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
