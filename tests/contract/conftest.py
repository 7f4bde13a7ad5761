"""The engines that the contract suite runs over.

Real llama.cpp always; the built-in engine, real vLLM, Ollama and MLX where ``PACELINE_TEST_BUILTIN``, ``…_VLLM``,
``…_OLLAMA`` or ``…_MLX`` say where one runs and what its model is called ("http://127.0.0.1:8000 smollm2"; the stages
of ``scripts/test`` start them); and servers that play each kind, called ``scripted-…``: they prove that the adapter
speaks the protocol, not that the engine does.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable

import pytest
from engines.scripted import ScriptedEngine
from engines.subject import Subject

from adapters.base import Endpoint
from adapters.registry import create, kinds

REAL = ("llamacpp", "builtin", "vllm", "ollama", "mlx")
SCRIPTED = ("llamacpp", "builtin", "vllm", "ollama", "lmstudio", "mlx", "openai")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with ``subject`` runs over all engines, with ``real`` or ``played`` over real or scripted ones."""
    real = [pytest.param(("real", kind), id=kind, marks=getattr(pytest.mark, kind)) for kind in REAL]
    played = [pytest.param(("scripted", kind), id=f"scripted-{kind}") for kind in SCRIPTED if kind in kinds()]
    over = {"subject": real + played, "real": real, "played": played}
    for name, engines in over.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, engines, indirect=True)


@pytest.fixture
async def subject(request: pytest.FixtureRequest, scripted: Callable[..., ScriptedEngine]) -> AsyncIterator[Subject]:
    sort, kind = request.param
    if sort == "scripted":
        engine = scripted(kind=kind)
        found = Subject(create(kind, Endpoint(kind, engine.url)), engine.model, engine)
        if kind == "mlx":
            found.engine_model = "default_model"
    else:
        url, model = _real(request, kind)
        found = Subject(create(kind, Endpoint(kind, url)), model)
    yield found
    await found.adapter.aclose()


real = played = subject


def _real(request: pytest.FixtureRequest, kind: str) -> tuple[str, str]:
    if kind == "llamacpp":
        server = request.getfixturevalue("llamacpp")
        return server.url, server.model
    variable = f"PACELINE_TEST_{kind.upper()}"
    place = os.environ.get(variable, "").split()
    if len(place) != 2:
        pytest.skip(f"NO REAL {kind.upper()}: set {variable} to its address and its model's name")
    return place[0], place[1]
