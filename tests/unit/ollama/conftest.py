"""An Ollama adapter in front of a scripted engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest
from engines.recorded import play_ollama
from engines.scripted import ScriptedEngine

from adapters.base import Endpoint
from adapters.ollama import OllamaAdapter


@dataclass
class Ollama:
    """The adapter and the engine that it talks to."""

    engine: ScriptedEngine
    adapter: OllamaAdapter

    def contexts(self, model: str, context: int) -> None:
        """Let the adapter believe that the model runs with this context."""
        self.adapter._contexts.seen({model: context})


@pytest.fixture
async def ollama(scripted: Callable[..., ScriptedEngine]) -> AsyncIterator[Ollama]:
    engine = scripted()
    play_ollama(engine, "0.32")
    adapter = OllamaAdapter(Endpoint("here", engine.url))
    yield Ollama(engine, adapter)
    await adapter.aclose()
