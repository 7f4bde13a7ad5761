"""The command line: what a user types and sees. In this process; what engines add runs in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway import __version__
from gateway.cli import main
from gateway.keys import KeyRing, hash_key
from gateway.settings import load_settings

COMMANDS = (
    "up",
    "init",
    "doctor",
    "models",
    "explain",
    "bench",
    "records",
    "compare",
    "quality",
    "soak",
    "cache",
    "why",
    "top",
    "key",
    "version",
)
SECRET = "hunter2-hunter2-hunter2"


@dataclass(frozen=True)
class Done:
    """How a command ended and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


Paceline = Callable[..., Done]


@pytest.fixture
def paceline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Paceline:
    """Types ``paceline`` and the given words, in a folder of its own and without anybody's variables."""
    for name in [name for name in os.environ if name.startswith("PACELINE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("PACELINE_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["paceline", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return Done(code if isinstance(code, int) else 0, *capsys.readouterr())

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(paceline: Paceline, command: str) -> None:
    done = paceline(command, "--help")
    assert done.returncode == 0
    assert f"Example: paceline {command}" in done.stdout
    assert "--json" in done.stdout
    assert "\x1b" not in done.stdout


def test_the_first_help_lists_every_command_and_says_where_to_begin(paceline: Paceline) -> None:
    done = paceline("--help")
    assert all(f"\n  {command}" in done.stdout for command in COMMANDS)
    assert "paceline up" in done.stdout


def test_help_imports_nothing_heavy_and_no_command() -> None:
    code = "import atexit, sys; from gateway.cli import main; atexit.register(lambda: print(*sys.modules)); main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=True,
    )
    imported = set(done.stdout.split())
    assert "gateway.cli.app" in imported
    heavy = {"pydantic", "fastapi", "uvicorn", "msgspec", "psutil", "yaml", "rich"}
    assert imported.isdisjoint(heavy | {f"gateway.cli.{command}" for command in COMMANDS})


def test_the_version_is_told_in_both_ways(paceline: Paceline) -> None:
    assert __version__ in paceline("--version").stdout
    assert json.loads(paceline("version", "--json").stdout)["paceline"] == __version__


def test_a_key_is_made_whose_lines_open_the_door(paceline: Paceline, tmp_path: Path) -> None:
    shown = paceline("key", "--name", "alice", "--admin").stdout
    secret = next(line.strip() for line in shown.splitlines() if line.startswith("  sk-"))
    path = tmp_path / "paceline.yaml"
    path.write_text(shown[shown.index("auth:") :])
    caller = KeyRing(load_settings(path).auth).authenticate({b"x-api-key": secret.encode()})
    assert (caller.name, caller.admin) == ("alice", True)
    assert secret not in path.read_text()


def test_a_key_in_json_comes_with_its_hash(paceline: Paceline) -> None:
    made = json.loads(paceline("key", "--json").stdout)
    assert made["hash"] == hash_key(made["key"])


@pytest.mark.parametrize(
    "words",
    [("sing",), ("up", "--port", "abc"), ("up", "--port", "70000"), ("explain", "hi"), ("explain", "--model", "m")],
)
def test_what_is_typed_wrongly_ends_with_2_and_says_how_it_goes(paceline: Paceline, words: tuple[str, ...]) -> None:
    done = paceline(*words)
    assert done.returncode == 2
    assert "Usage: paceline" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [("up",), ("models",), ("explain", "hi", "--model", "m"), ("doctor",)])
def test_a_broken_configuration_ends_with_1_and_is_told_without_traceback_or_secret(
    paceline: Paceline, command: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "bad.yaml").write_text(f"server: {{prt: 1}}\nauth: {{keys: [{{name: a, hash: {SECRET}}}]}}\n")
    done = paceline(*command, "--config", "bad.yaml")
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert "bad.yaml:1: server.prt is not a setting" in said
    assert "Did you mean `server.port`?" in said
    assert "Traceback" not in said
    assert SECRET not in said


def test_a_broken_configuration_in_json_lists_its_problems(paceline: Paceline, tmp_path: Path) -> None:
    (tmp_path / "paceline.yaml").write_text("server: {prt: 1}")
    done = paceline("models", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["problems"][0]["fix"] == "Did you mean `server.port`?"


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_up_refuses_an_open_address_without_keys_and_names_both_ways_out(paceline: Paceline, host: str) -> None:
    done = paceline("up", "--host", host, "--port", "0")
    assert done.returncode == 1
    assert "paceline key" in done.stderr
    assert "host: 127.0.0.1" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_not_there_is_said_so(paceline: Paceline) -> None:
    done = paceline("up", "--config", "none.yaml")
    assert done.returncode == 1
    assert "none.yaml does not exist" in done.stderr


def test_init_does_not_overwrite_what_is_there(paceline: Paceline, tmp_path: Path) -> None:
    (tmp_path / "paceline.yaml").write_text("mine")
    done = paceline("init")
    assert done.returncode == 1
    assert "--force" in done.stderr
    assert (tmp_path / "paceline.yaml").read_text() == "mine"
