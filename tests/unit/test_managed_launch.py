"""How each kind of engine is started: its command line and environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from adapters import launch
from adapters.launch import CannotStart, Command, LaunchSpec, command
from policies.types import Precision

PORT = 18080


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def gguf(tmp_path: Path) -> str:
    file = tmp_path / "Tiny-Q8_0.gguf"
    file.touch()
    return str(file)


def program(folder: Path, name: str) -> str:
    file = folder / name
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return str(file)


def value(made: Command, option: str) -> str:
    """What follows an option on the command line."""
    return made.argv[made.argv.index(option) + 1]


def test_llama_server_on_the_path_is_used_with_the_context_of_all_slots_together(on_path: Path, gguf: str) -> None:
    binary = program(on_path, "llama-server")
    made = command(LaunchSpec("a", "llamacpp", gguf, context=2048, slots=3, args=("--flash-attn", "on")), PORT)
    assert made.argv[0] == binary
    assert value(made, "--ctx-size") == "6144"
    assert value(made, "--parallel") == "3"
    assert value(made, "--alias") == "Tiny-Q8_0"
    assert "--metrics" in made.argv
    assert made.argv[-2:] == ("--flash-attn", "on")
    assert made.url == f"http://127.0.0.1:{PORT}"


def test_without_the_binary_llama_cpp_comes_from_its_package_and_its_version_is_known(on_path: Path, gguf: str) -> None:
    pytest.importorskip("xllamacpp", reason="NO REAL LLAMA.CPP: install paceline[llamacpp]")
    made = command(LaunchSpec("a", "llamacpp", gguf, context=2048, slots=3), PORT)
    assert made.argv[0] == sys.executable
    assert value(made, "--ctx-size") == "2048"
    assert made.version.startswith("xllamacpp ")


def test_without_binary_and_package_the_two_ways_out_are_told(
    on_path: Path, gguf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CannotStart, match=r"install llama\.cpp, or pip install 'paceline\[llamacpp\]'"):
        command(LaunchSpec("a", "llamacpp", gguf), PORT)


def test_on_a_cpu_llama_cpp_reads_prompts_in_small_batches(
    on_path: Path, gguf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(on_path, "llama-server")
    monkeypatch.setattr(launch, "has_gpu", lambda: False)
    assert value(command(LaunchSpec("a", "llamacpp", gguf), PORT), "--batch-size") == "128"
    assert value(command(LaunchSpec("a", "llamacpp", gguf, batch=64), PORT), "--batch-size") == "64"
    monkeypatch.setattr(launch, "has_gpu", lambda: True)
    assert "--batch-size" not in command(LaunchSpec("a", "llamacpp", gguf), PORT).argv


def test_threads_are_the_engines_choice_unless_a_container_leaves_fewer_cores(
    on_path: Path, gguf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(on_path, "llama-server")
    monkeypatch.setattr(launch, "has_gpu", lambda: False)
    monkeypatch.setattr(launch, "usable_cores", lambda: float(os.cpu_count() or 1))
    assert "--threads" not in command(LaunchSpec("a", "llamacpp", gguf), PORT).argv
    monkeypatch.setattr(launch, "usable_cores", lambda: 0.5)
    monkeypatch.setattr(launch.os, "cpu_count", lambda: 8)
    assert value(command(LaunchSpec("a", "llamacpp", gguf), PORT), "--threads") == "1"
    assert value(command(LaunchSpec("a", "llamacpp", gguf, threads=3), PORT), "--threads") == "3"


def test_an_engine_that_shares_its_cores_does_not_hold_them_while_it_waits(
    on_path: Path, gguf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(on_path, "llama-server")
    monkeypatch.setattr(launch, "has_gpu", lambda: False)
    assert command(LaunchSpec("a", "llamacpp", gguf), PORT).env == {"GOMP_SPINCOUNT": "2000"}
    assert command(LaunchSpec("a", "llamacpp", gguf, shares_cores=True), PORT).env == {"GOMP_SPINCOUNT": "500"}
    own = LaunchSpec("a", "llamacpp", gguf, shares_cores=True, env={"GOMP_SPINCOUNT": "9"})
    assert command(own, PORT).env == {"GOMP_SPINCOUNT": "9"}


def test_a_program_or_model_that_is_not_there_is_named(on_path: Path, gguf: str, tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"no such model file: nowhere\.gguf"):
        command(LaunchSpec("a", "llamacpp", "nowhere.gguf"), PORT)
    with pytest.raises(CannotStart, match=r"no such program: .*/mine"):
        command(LaunchSpec("a", "llamacpp", gguf, binary=tmp_path / "mine"), PORT)
    with pytest.raises(CannotStart, match="there is no ollama"):
        command(LaunchSpec("a", "ollama"), PORT)
    with pytest.raises(CannotStart, match="no folder"):
        command(LaunchSpec("a", "ollama", str(tmp_path / "none"), binary=Path(program(on_path, "o"))), PORT)
    with pytest.raises(CannotStart, match="set 'python'"):
        command(LaunchSpec("a", "vllm", "some/model"), PORT)
    with pytest.raises(CannotStart, match="it starts builtin, llamacpp, vllm, ollama"):
        command(LaunchSpec("a", "lmstudio"), PORT)


def test_vllm_runs_in_the_python_beside_its_script_on_the_path(on_path: Path, tmp_path: Path) -> None:
    environment = tmp_path / "vllm" / "bin"
    environment.mkdir(parents=True)
    python = program(environment, "python")
    (on_path / "vllm").symlink_to(program(environment, "vllm"))
    assert command(LaunchSpec("a", "vllm", "some/model"), PORT).argv[0] == python


def test_vllm_without_a_gpu_is_told_to_use_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "has_gpu", lambda: False)
    model = tmp_path / "smol"
    model.mkdir()
    spec = LaunchSpec(
        "a", "vllm", str(model), python=Path(sys.executable), precision=Precision.BF16, context=2048, slots=8, threads=2
    )
    made = command(spec, PORT)
    assert made.argv[:3] == (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
    assert value(made, "--served-model-name") == "smol"
    assert value(made, "--dtype") == "bfloat16"
    assert value(made, "--max-model-len") == "2048"
    assert value(made, "--max-num-seqs") == "8"
    assert made.env["VLLM_TARGET_DEVICE"] == "cpu"
    assert made.env["HF_HUB_OFFLINE"] == "1"
    assert made.env["OMP_NUM_THREADS"] == "2"


def test_vllm_with_a_gpu_is_left_to_its_own_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "has_gpu", lambda: True)
    made = command(LaunchSpec("a", "vllm", "org/model", python=Path(sys.executable)), PORT)
    assert made.env == {}
    assert value(made, "--served-model-name") == "org/model"
    assert "--enforce-eager" not in made.argv
    assert "--dtype" not in made.argv


def test_ollama_is_told_where_to_listen_and_where_its_models_are(on_path: Path, tmp_path: Path) -> None:
    program(on_path, "ollama")
    made = command(LaunchSpec("a", "ollama", str(tmp_path), slots=2, context=8192), PORT)
    assert made.argv == (str(on_path / "ollama"), "serve")
    assert made.env == {
        "OLLAMA_HOST": f"127.0.0.1:{PORT}",
        "OLLAMA_MODELS": str(tmp_path),
        "OLLAMA_NUM_PARALLEL": "2",
        "OLLAMA_CONTEXT_LENGTH": "8192",
    }


def test_what_the_operator_sets_in_the_environment_comes_last(on_path: Path) -> None:
    program(on_path, "ollama")
    made = command(LaunchSpec("a", "ollama", slots=2, env={"OLLAMA_NUM_PARALLEL": "5"}), PORT)
    assert made.env["OLLAMA_NUM_PARALLEL"] == "5"


def test_arguments_that_change_the_speed_change_the_digest_and_a_port_does_not() -> None:
    spec = LaunchSpec("a", "llamacpp", "m.gguf", batch=128)
    assert spec.digest == LaunchSpec("b", "llamacpp", "m.gguf", batch=128, port=9).digest
    assert spec.digest != LaunchSpec("a", "llamacpp", "m.gguf", batch=256).digest
    assert spec.digest != LaunchSpec("a", "llamacpp", "m.gguf", batch=128, args=("--no-mmap",)).digest


def test_llama_server_without_its_package_names_the_extra(tmp_path: Path) -> None:
    script = shutil.copy(Path(launch.__file__).with_name("llama_server.py"), tmp_path)
    bare = [sys.executable, "-I", "-S", script, "--model", "m.gguf"]
    ended = subprocess.run(bare, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 1
    assert "pip install 'paceline[llamacpp]'" in ended.stderr
    assert "Traceback" not in ended.stderr
