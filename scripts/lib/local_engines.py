"""Real engines on this machine, ready for a configuration: llama.cpp, the built-in engine, vLLM, Ollama."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from adapters.launch import LaunchError, LaunchSpec
from adapters.managed import ManagedEngine

KIT = Path(__file__).resolve().parents[1] / "engines"
MODEL = "smollm2"
CONTEXT = 2048
CREATE_LIMIT_S = 120.0
NOT_TO_BE_HAD = 75
"""Exit status of the kit's programs when a registry does not answer or a tool is missing."""

Engine = dict[str, Any]
"""One of the ``engines`` of a configuration."""


class NotMade(Exception):
    """An engine or a model could not be made; the message says which."""


class Unavailable(NotMade):
    """It cannot be had here: a registry does not answer, or a tool is missing."""


def engines(
    beside: Iterable[str], folder: Path, say: Callable[[str], None], make_also: Iterable[str] = ()
) -> list[Engine]:
    """Return llama.cpp and those of ``BESIDE`` that are named, where the kit has made them or is told to make them.

    ``say`` is told of each of the others. Ollama keeps its model in ``folder``. Raises ``NotMade``: no llama.cpp.
    """
    found = llamacpp_engines()
    for name in beside:
        if not (name in make_also or is_made(name)):
            say(f"Without {name}: `scripts/engines/{name}` makes it.")
            continue
        try:
            found += BESIDE[name](folder)
        except (NotMade, LaunchError) as error:
            say(f"Without {name}: {error}")
    return found


def llamacpp_engines() -> list[Engine]:
    """Return llama.cpp with the model in int4, int8 and fp16. Raises ``NotMade``."""
    return [_llamacpp(f"llama-{name}", precision) for name, precision in _PRECISIONS.items()]


def builtin_engines() -> list[Engine]:
    """Return the built-in engine with the model in bf16 and int8; its environment made first. Raises ``NotMade``."""
    python, model = make("builtin"), make("safetensors")
    return [_builtin(precision, python, model) for precision in ("bf16", "int8")]


def vllm_engines() -> list[Engine]:
    """Return vLLM with the model in bf16; made first if need be. Raises ``NotMade``."""
    python, model = make("vllm"), make("safetensors")
    launch = {"engine": "vllm", "model": model, "python": python, "context": CONTEXT}
    return [{"name": "vllm", "launch": launch, "precision": "bf16", "models": {Path(model).name: MODEL}}]


def ollama_engines(folder: Path) -> list[Engine]:
    """Return Ollama with the model, which it keeps in ``folder``; made first if need be. Raises ``NotMade``."""
    models = folder / "ollama"
    models.mkdir()
    spec = ollama_spec(models, home=folder)
    asyncio.run(_fill(spec))
    launch = {"engine": "ollama", "binary": str(spec.binary), "model": spec.model, "env": dict(spec.env)}
    return [{"name": "ollama", "launch": launch, "models": {f"{MODEL}:latest": MODEL}}]


def ollama_spec(models: Path, home: Path) -> LaunchSpec:
    """Say how to start Ollama on a folder of models. Raises ``NotMade``."""
    return LaunchSpec(
        name="ollama",
        engine="ollama",
        model=str(models),
        binary=Path(make("ollama")),
        env={"HOME": str(home)},
        log_file=home / "ollama.log",
    )


async def create_ollama_model(server: ManagedEngine, name: str, *arguments: str) -> None:
    """Make a model in an Ollama that runs; ``arguments`` are for the kit's ``ollama-model``. Raises ``NotMade``."""
    modelfile = await asyncio.to_thread(make, "ollama-model", *arguments)
    env = {**os.environ, **server.spec.env, "OLLAMA_HOST": server.url.removeprefix("http://")}
    creating = await asyncio.create_subprocess_exec(
        str(server.spec.binary),
        *("create", name, "-f", modelfile),
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(CREATE_LIMIT_S):
            _, said = await creating.communicate()
    except TimeoutError:
        creating.kill()
        await creating.wait()
        raise NotMade(f"ollama create took more than {CREATE_LIMIT_S:g} s") from None
    if creating.returncode:
        raise NotMade(f"ollama create failed: {said.decode(errors='replace').strip()[-300:]}")


def make(program: str, *arguments: str) -> str:
    """Run one of the kit's programs and return the path that it prints. Raises ``NotMade``."""
    done = subprocess.run(
        [sys.executable, str(KIT / program), *arguments], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode == NOT_TO_BE_HAD:
        raise Unavailable(f"scripts/engines/{program} says why above")
    if done.returncode:
        raise NotMade(f"scripts/engines/{program} failed; its own lines above say why")
    return done.stdout.strip()


def is_made(program: str) -> bool:
    """Return whether one of the kit's programs has nothing left to do."""
    check = [sys.executable, str(KIT / program), "--check"]
    return subprocess.run(check, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0


_PRECISIONS = {"q4": "q4_1", "q8": "q8_0", "f16": "f16"}


def _llamacpp(name: str, precision: str) -> Engine:
    gguf = make("model", "--precision", precision)
    launch = {"engine": "llamacpp", "model": gguf, "context": CONTEXT, "slots": 2}
    return {"name": name, "launch": launch, "models": {Path(gguf).stem: MODEL}}


def _builtin(precision: str, python: str, model: str) -> Engine:
    launch = {"engine": "builtin", "model": model, "python": python, "context": CONTEXT, "slots": 8}
    return {
        "name": f"own-{precision}",
        "launch": launch,
        "precision": precision,
        "models": {Path(model).name: MODEL},
    }


BESIDE: Mapping[str, Callable[[Path], list[Engine]]] = {
    "builtin": lambda _: builtin_engines(),
    "vllm": lambda _: vllm_engines(),
    "ollama": ollama_engines,
}
"""By the names of the kit's programs: what runs beside llama.cpp where it has been made."""


async def _fill(spec: LaunchSpec) -> None:
    server = ManagedEngine(spec)
    server.start()
    try:
        await server.wait_up()
        await create_ollama_model(server, MODEL)
    finally:
        await server.stop()
