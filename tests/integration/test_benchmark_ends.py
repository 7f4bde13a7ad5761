"""A benchmark that is told to end takes the gateways and engines with it that it has started."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
from engines.processes import wait_gone
from engines.signals import LIMIT_S

ROOT = Path(__file__).parents[2]
BENCHMARK = """
from benchmarks.overhead.processes import upstreams
from scripts.lib.ending import end_when_terminated
end_when_terminated()
with upstreams(1) as ports:
    print(ports, flush=True)
    input()
"""


def test_sigterm_ends_what_a_benchmark_has_started_as_ctrl_c_does() -> None:
    command = [sys.executable, "-c", BENCHMARK]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        started = [child.pid for child in psutil.Process(process.pid).children()]
        assert started
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 143
    wait_gone(started)
