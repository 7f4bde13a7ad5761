"""What `paceline up` has imported at the moment in which it serves: what comes later does not hold up the start."""

from __future__ import annotations

import subprocess
import sys

import pytest
from shell import LIMIT_S, Shell

NOT_BEFORE_SERVING = {"fastapi", "litellm", "rich", "starlette", "websockets", "yaml"}


@pytest.fixture
def starting(shell: Shell) -> subprocess.Popen[str]:
    """A `paceline up` that tells on its one output what it imports."""
    shell.environment["PACELINE_DISCOVERY__ENABLED"] = "false"
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "gateway", "up", "--port", "0"],
        cwd=shell.folder,
        env=shell.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    shell.started.append(process)
    return process


def test_it_serves_before_it_imports_what_only_its_pages_need(starting: subprocess.Popen[str]) -> None:
    assert starting.stdout is not None
    imported = set()
    for line in starting.stdout:
        if line.startswith("Serving on"):
            break
        imported.add(line.rpartition("|")[2].strip().partition(".")[0])
    else:
        pytest.fail("it never served")
    assert "uvicorn" in imported
    assert imported.isdisjoint(NOT_BEFORE_SERVING)
    starting.terminate()
    starting.communicate(timeout=LIMIT_S)
    assert starting.returncode == 0
