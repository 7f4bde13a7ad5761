"""What the tests of whole processes share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engines.scripted import ScriptedEngine
from shell import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Where `paceline` is run; what runs there ends with the test."""
    shell = Shell(tmp_path)
    yield shell
    shell.close()


@pytest.fixture
def engine(scripted: Callable[..., ScriptedEngine]) -> ScriptedEngine:
    """A scripted llama.cpp with the model ``tiny`` in int4."""
    return scripted(kind="llamacpp", model="tiny.gguf")
