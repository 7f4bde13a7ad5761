"""Starts one real engine for a stage of the tests, says where it is in PACELINE_TEST_KIND, and ends it afterwards.

Example: python scripts/lib/engine_stage.py vllm -- pytest -q -m vllm tests
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from local_engines import MODEL, NotMade, Unavailable, create_ollama_model, make, ollama_spec

from adapters.launch import Command, LaunchError, LaunchSpec, command
from adapters.managed import ManagedEngine

READY_LIMIT_S = 600.0
VLLM_TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--tool-strict-level", "parameter")
"""Without a parser vLLM refuses tools; without the strict level the arguments follow no schema."""


def main(arguments: list[str]) -> int:
    """Run the command after ``--`` beside a real engine. Returns its exit status, 0 when the engine cannot be had."""
    kind, separator, *tests = arguments
    assert separator == "--"
    with tempfile.TemporaryDirectory(prefix="paceline-stage-") as folder:
        try:
            return asyncio.run(_beside(kind, tests, Path(folder)))
        except Unavailable as error:
            print(f"\n{'!' * 72}\n!! SKIPPED: no real {kind} here: {error}\n{'!' * 72}\n", flush=True)
            return 0
        except NotMade as error:
            print(error, flush=True)
            return 1


async def _beside(kind: str, tests: list[str], folder: Path) -> int:
    spec = _SPECS[kind](folder)
    engine = ManagedEngine(spec, build=_mlx if kind == "mlx" else command)
    engine.start()
    try:
        await engine.wait_up()
        if kind == "ollama":
            await create_ollama_model(engine, MODEL)
            await create_ollama_model(engine, f"{MODEL}-tools", "--tools")
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


def _vllm(folder: Path) -> LaunchSpec:
    python = Path(make("vllm"))
    return LaunchSpec(
        name="vllm",
        engine="vllm",
        model=make("safetensors"),
        alias=MODEL,
        python=python,
        context=2048,
        args=("--dtype", "bfloat16", *VLLM_TOOLS),
        ready_timeout_s=READY_LIMIT_S,
        log_file=folder / "vllm.log",
    )


def _ollama(folder: Path) -> LaunchSpec:
    models = folder / "models"
    models.mkdir()
    return ollama_spec(models, home=folder)


def _mlx_spec(folder: Path) -> LaunchSpec:
    return LaunchSpec(
        name="mlx", engine="mlx", model=make("safetensors"), python=Path(make("mlx")), log_file=folder / "mlx.log"
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


def _builtin(folder: Path) -> LaunchSpec:
    return LaunchSpec(
        name="builtin",
        engine="builtin",
        model=make("safetensors"),
        alias=MODEL,
        python=Path(make("builtin")),
        context=2048,
        slots=2,
        log_file=folder / "builtin.log",
    )


_SPECS = {"builtin": _builtin, "vllm": _vllm, "ollama": _ollama, "mlx": _mlx_spec}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
