"""An Ollama adapter in front of a scripted engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest
from engines.recorded import play_ollama
from engines.scripted import ScriptedEngine
from engines.scripts import whole

from adapters.base import Endpoint
from adapters.ollama import OllamaAdapter


@dataclass
class Ollama:
    """The adapter and the engine that it talks to."""

    engine: ScriptedEngine
    adapter: OllamaAdapter

    async def resident(self, model: str, context: int) -> None:
        """Let Ollama say that the model runs with this context, and the adapter hear it."""
        self.engine.routes["GET /api/ps"] = whole({"models": [{"name": model, "context_length": context}]})
        await self.adapter.load()


@pytest.fixture
async def ollama(scripted: Callable[..., ScriptedEngine]) -> AsyncIterator[Ollama]:
    engine = scripted()
    play_ollama(engine, "0.32")
    adapter = OllamaAdapter(Endpoint("here", engine.url))
    yield Ollama(engine, adapter)
    await adapter.aclose()
