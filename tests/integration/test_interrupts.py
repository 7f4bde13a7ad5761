"""Ctrl+C while a command works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from shell import LIMIT_S, ROOT

PROGRAM = """
import asyncio
from gateway.cli.interrupts import run_to_the_end

async def work():
    try:
        print("works", flush=True)
        await asyncio.Event().wait()
    finally:
        print("ends", flush=True)
        await asyncio.to_thread(input)
        print("ended", flush=True)

print("done" if run_to_the_end(work()) else "interrupted", flush=True)
"""


@pytest.fixture
def program() -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=pipe, stdout=pipe, stderr=pipe, env=environment, text=True
    )
    yield process
    process.kill()
    process.communicate()


def said(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_work_that_is_interrupted_ends_in_order_also_when_it_is_interrupted_again(
    program: subprocess.Popen[str], number: signal.Signals
) -> None:
    assert said(program) == "works"
    program.send_signal(number)
    assert said(program) == "ends"
    program.send_signal(number)
    out, errors = program.communicate("\n", timeout=LIMIT_S)
    assert out.split() == ["ended", "interrupted"]
    assert errors == ""
