"""What can be learned of a local engine's process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from adapters.process import family, find_listener, gpu_device_numbers, memory_use, model_path

HOLD = "import sys; print('ready', flush=True); sys.stdin.read()"
GREW_AND_SHRANK = f"x = b'x' * 150_000_000; del x; {HOLD}"
WITH_CHILD = (
    f"import subprocess, sys; c = subprocess.Popen([sys.executable, '-S', '-c', {GREW_AND_SHRANK!r}],"
    " stdin=0, stdout=subprocess.PIPE); c.stdout.readline(); print(c.pid, flush=True); sys.stdin.read(); c.wait()"
)
MB = 1_000_000

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs Python code until the test ends; gives its pid and the first line that it printed."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: str, cwd: Path | None = None, python: str = sys.executable) -> tuple[int, str]:
        process = subprocess.Popen(
            [python, "-S", "-c", code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=cwd,
        )
        started.append(process)
        assert process.stdout is not None
        return process.pid, process.stdout.readline().strip()

    yield start
    for process in started:
        process.communicate("\n", timeout=20)


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_the_process_that_listens_on_a_port_is_found(address: str) -> None:
    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]
        assert find_listener(port) == os.getpid()
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert find_listener(client.getsockname()[1]) is None
    assert find_listener(port) is None


def test_a_forwarder_into_a_container_is_not_taken_for_the_engine(run: Run, tmp_path: Path) -> None:
    forwarder = tmp_path / "docker-proxy"
    forwarder.symlink_to(Path(sys.executable).resolve())
    listen = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)"
    _, port = run(f"{listen}; input()", python=str(forwarder))
    assert find_listener(int(port)) is None
    pid, port = run(f"{listen}; input()")
    assert find_listener(int(port)) == pid


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only /proc keeps the peak")
def test_peak_memory_counts_what_was_given_back_and_the_children(run: Run) -> None:
    pid, child = run(WITH_CHILD)
    assert family(pid) == {pid, int(child)}
    used = memory_use(pid)
    assert used is not None
    assert used.is_peak
    assert 150 * MB < used.host_bytes < 300 * MB
    assert used.gpu_bytes is None


def test_a_process_that_is_gone_has_no_family_and_no_memory() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        pass
    assert family(process.pid) == frozenset()
    assert memory_use(process.pid) is None
    assert model_path(process.pid) is None


@pytest.mark.parametrize(
    "arguments", [("--model", "weights"), ("--model=weights",), ("serve", "weights", "--port", "1")]
)
def test_the_model_on_a_command_line_is_found_from_the_process_own_folder(
    run: Run, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "weights").mkdir()
    pid, _ = run(HOLD, *arguments, cwd=tmp_path)
    assert model_path(pid) == tmp_path / "weights"


def test_a_model_that_is_only_a_name_is_no_path(run: Run, tmp_path: Path) -> None:
    pid, _ = run(HOLD, "--model", "org/model", cwd=tmp_path)
    assert model_path(pid) is None


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="Linux only")
def test_a_process_without_a_gpu_has_none_of_their_files_open() -> None:
    assert gpu_device_numbers([os.getpid()]) == frozenset()
