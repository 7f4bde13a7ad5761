"""The guard between Paceline and an engine: nothing outlives its owner, and the log stays small."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engines import little
from engines.processes import pids_in, runs, wait_gone
from engines.signals import LIMIT_S

from adapters import guard

ROOT = Path(__file__).parents[2]
OWNER = ROOT / "tests/engines/owner.py"
SILENT = "import time; time.sleep(600)"


class Guarded:
    """A command under guard, as its owner sees it."""

    def __init__(self, *command: str, options: tuple[str, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, *options, "--", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def report(self) -> dict[str, Any]:
        """What the guard says next."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())  # type: ignore[no-any-return]

    def last(self) -> dict[str, Any]:
        """The guard's last word, once all is over."""
        assert self.process.stdout is not None
        assert self.process.stdin is not None
        lines = self.process.stdout.read().splitlines()
        self.process.wait(LIMIT_S)
        self.process.stdout.close()
        self.process.stdin.close()
        return json.loads(lines[-1])  # type: ignore[no-any-return]

    def let_go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", code)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_nothing_is_left_of_an_engine_whose_owner_is_killed(loop: str, tmp_path: Path) -> None:
    family = tmp_path / "family"
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    command = [sys.executable, OWNER, loop, "--stubborn", "--family", family]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as owner:
        assert owner.stdout is not None
        engine = int(owner.stdout.readline())
        all_of_it = [engine, *pids_in(family)]
        assert all(runs(pid) for pid in all_of_it)
        owner.kill()
    wait_gone(all_of_it if sys.platform == "linux" else all_of_it[:2])


def test_the_engine_ends_when_the_lifeline_is_closed() -> None:
    guarded = Guarded(*python(SILENT))
    pid = guarded.report()["pid"]
    assert runs(pid)
    guarded.let_go()
    assert guarded.last()["status"] == -signal.SIGTERM
    assert not runs(pid)


def test_the_engine_ends_when_the_guard_is_asked_to_stop() -> None:
    guarded = Guarded(*python(SILENT))
    pid = guarded.report()["pid"]
    guarded.process.terminate()
    assert guarded.last()["status"] == -signal.SIGTERM
    assert not runs(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_the_engine_ends_with_a_guard_that_is_killed() -> None:
    with Guarded(*python(SILENT)).process as process:
        assert process.stdout is not None
        pid = json.loads(process.stdout.readline())["pid"]
        process.kill()
        wait_gone([pid])


def test_an_engine_that_takes_no_notice_is_killed_after_the_limit() -> None:
    guarded = Guarded(*little.SLEEPER, options=("--stop-limit-s", "0.3"))
    pid = guarded.report()["pid"]
    guarded.let_go()
    assert guarded.last()["status"] in (-signal.SIGKILL, -signal.SIGTERM)  # TERM if it came before it was ignored
    assert not runs(pid)


def test_it_ends_with_the_status_of_the_engine_and_its_last_words() -> None:
    guarded = Guarded(*python("import sys; print('a'); print('b', file=sys.stderr); sys.exit(7)"))
    assert guarded.last() == {"status": 7, "tail": "b\na\n"}  # stdout is a pipe there, and flushed at the end
    assert guarded.process.returncode == 7


def test_an_engine_that_a_signal_ended_gives_the_status_that_shells_give() -> None:
    guarded = Guarded(*python("import os; os.kill(os.getpid(), 9)"))
    assert guarded.last()["status"] == -9
    assert guarded.process.returncode == 137


def test_a_program_that_is_not_there_is_said_to_be_missing() -> None:
    guarded = Guarded("/no/such/program")
    assert guarded.last() == {"status": 127, "tail": "/no/such/program: No such file or directory"}
    assert guarded.process.returncode == 127


def test_the_log_keeps_the_newest_lines_and_never_outgrows_its_bound(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "engine.log"
    lines = "for n in range(20_000): print(f'{n:08}', 'x' * 90)"  # 2 MB
    guarded = Guarded(*python(lines), options=("--log", str(log), "--log-bytes", "300000"))
    assert guarded.last()["tail"].splitlines()[-1].startswith("00019999")
    assert sorted(path.name for path in log.parent.iterdir()) == ["engine.log", "engine.log.1"]
    assert all(0 < path.stat().st_size <= 300_000 for path in log.parent.iterdir())
    assert log.read_text().splitlines()[-1].startswith("00019999")
    assert log.stat().st_mode & 0o077 == 0


def test_a_log_goes_on_where_the_last_start_left_it(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    for word in ("first", "second"):
        Guarded(*python(f"print({word!r})"), options=("--log", str(log))).last()
    assert log.read_text() == "first\nsecond\n"


def test_a_log_that_cannot_be_written_does_not_hold_the_engine_up(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    log = tmp_path / "file" / "engine.log"
    guarded = Guarded(*python("print('x' * 500_000); print('done')"), options=("--log", str(log)))
    last = guarded.last()
    assert last["status"] == 0
    assert last["tail"].endswith("done\n")


def test_it_runs_as_a_module_too() -> None:
    command = [sys.executable, "-m", "adapters.guard", "--", *python("print('hello')")]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.read().splitlines()[-1]) == {"status": 0, "tail": "hello\n"}
