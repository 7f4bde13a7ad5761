"""Starts one real engine for a stage of the tests, says where it is in PACELINE_TEST_KIND, and ends it afterwards.

Example: python scripts/lib/engine_stage.py vllm -- pytest -q -m vllm tests
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from adapters.launch import Command, LaunchError, LaunchSpec, command
from adapters.managed import ManagedEngine

KIT = Path(__file__).resolve().parents[1] / "engines"
NOT_TO_BE_HAD = 75
MODEL = "smollm2"
READY_LIMIT_S = 600.0
VLLM_TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--tool-strict-level", "parameter")
"""Without a parser vLLM refuses tools; without the strict level the arguments follow no schema."""


class Skipped(Exception):
    """The engine cannot be had here."""


def main(arguments: list[str]) -> int:
    """Run the command after ``--`` beside a real engine. Returns its exit status, 0 when the engine cannot be had."""
    kind, separator, *tests = arguments
    assert separator == "--"
    with tempfile.TemporaryDirectory(prefix="paceline-stage-") as folder:
        try:
            return asyncio.run(_beside(kind, tests, Path(folder)))
        except Skipped as error:
            print(f"\n{'!' * 72}\n!! SKIPPED: no real {kind} here. {error}\n{'!' * 72}\n", flush=True)
            return 0


async def _beside(kind: str, tests: list[str], folder: Path) -> int:
    spec = _SPECS[kind](folder)
    engine = ManagedEngine(spec, build=_mlx if kind == "mlx" else command)
    engine.start()
    try:
        await engine.wait_up()
        if kind == "ollama":
            await asyncio.to_thread(_create_ollama_models, spec, engine.url)
        print(f"{kind} runs at {engine.url}", flush=True)
        name = {"mlx": "default_model", "ollama": f"{MODEL}-tools"}.get(kind, MODEL)
        env = {**os.environ, f"PACELINE_TEST_{kind.upper()}": f"{engine.url} {name}"}
        process = await asyncio.create_subprocess_exec(*tests, env=env)
        return await process.wait()
    except LaunchError as error:
        print(f"{kind} is installed and does not start: {error}", flush=True)
        return 1
    finally:
        await engine.stop()


def _make(program: str, *arguments: str) -> str:
    made = subprocess.run(
        [sys.executable, str(KIT / program), *arguments], stdout=subprocess.PIPE, text=True, check=False
    )
    if made.returncode == NOT_TO_BE_HAD:
        raise Skipped(f"scripts/engines/{program} says why above.")
    if made.returncode:
        raise SystemExit(f"scripts/engines/{program} failed")
    return made.stdout.strip()


def _vllm(folder: Path) -> LaunchSpec:
    python = Path(_make("vllm"))
    return LaunchSpec(
        name="vllm",
        engine="vllm",
        model=_make("safetensors"),
        alias=MODEL,
        python=python,
        context=2048,
        args=("--dtype", "bfloat16", *VLLM_TOOLS),
        ready_timeout_s=READY_LIMIT_S,
        log_file=folder / "vllm.log",
    )


def _ollama(folder: Path) -> LaunchSpec:
    binary = Path(_make("ollama"))
    models = folder / "models"
    models.mkdir()
    return LaunchSpec(
        name="ollama",
        engine="ollama",
        model=str(models),
        binary=binary,
        env={"HOME": str(folder)},
        log_file=folder / "log",
    )


def _mlx_spec(folder: Path) -> LaunchSpec:
    return LaunchSpec(
        name="mlx", engine="mlx", model=_make("safetensors"), python=Path(_make("mlx")), log_file=folder / "mlx.log"
    )


def _mlx(spec: LaunchSpec, port: int) -> Command:
    argv = (
        str(spec.python),
        "-m",
        "mlx_lm",
        "server",
        "--model",
        spec.model,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    )
    return Command(argv, {"HF_HUB_OFFLINE": "1"}, f"http://127.0.0.1:{port}", "/health")


def _create_ollama_models(spec: LaunchSpec, url: str) -> None:
    env = {**os.environ, "OLLAMA_HOST": url.removeprefix("http://"), "HOME": str(spec.env["HOME"])}
    for name, arguments in ((MODEL, ()), (f"{MODEL}-tools", ("--tools",))):
        create = [str(spec.binary), "create", name, "-f", _make("ollama-model", *arguments)]
        subprocess.run(create, env=env, check=True, stdout=subprocess.DEVNULL, timeout=120)


_SPECS = {"vllm": _vllm, "ollama": _ollama, "mlx": _mlx_spec}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
