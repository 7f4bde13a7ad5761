"""The demo's engines: llama.cpp in three precisions; vLLM and Ollama where they are installed or asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

KIT = Path(__file__).resolve().parents[1] / "engines"
MODEL = "smollm2"
CONTEXT = 2048
NOT_TO_BE_HAD = 75
"""Exit status of the kit's programs when a registry does not answer or a tool is missing."""

Engine = dict[str, Any]


class Unavailable(Exception):
    """Something that the demo needs cannot be had; the message says what."""


def engines(folder: Path, console: Console, *, vllm: bool, ollama: bool) -> list[Engine]:
    """Return the ``engines`` of a configuration. Raises ``Unavailable`` when the model cannot be had."""
    configured = [
        _llamacpp("llama-q4", make("model", "--precision", "q4_1")),
        _llamacpp("llama-q8", make("model", "--precision", "q8_0")),
        _llamacpp("llama-f16", make("model", "--precision", "f16")),
    ]
    for name, wanted, build in (("vllm", vllm, _vllm), ("ollama", ollama, _ollama)):
        if not (wanted or _is_there(name)):
            continue
        try:
            configured.append(build(folder))
        except Unavailable as error:
            console.print(f"[yellow]Without {name}:[/] {error}")
    return configured


def make(program: str, *arguments: str) -> str:
    """Run one of the kit's programs and return the path that it prints. Raises ``Unavailable``."""
    done = subprocess.run(
        [sys.executable, str(KIT / program), *arguments], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise Unavailable(f"scripts/engines/{program} did not succeed; its own lines above say why")
    return done.stdout.strip()


def _is_there(program: str) -> bool:
    check = [sys.executable, str(KIT / program), "--check"]
    return subprocess.run(check, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0


def _llamacpp(name: str, gguf: str) -> Engine:
    launch = {"engine": "llamacpp", "model": gguf, "context": CONTEXT, "slots": 2}
    return {"name": name, "launch": launch, "models": {Path(gguf).stem: MODEL}}


def _vllm(folder: Path) -> Engine:
    python, model = make("vllm"), make("safetensors")
    launch = {"engine": "vllm", "model": model, "python": python, "context": CONTEXT}
    return {"name": "vllm", "launch": launch, "precision": "bf16", "models": {Path(model).name: MODEL}}


def _ollama(folder: Path) -> Engine:
    binary, modelfile = make("ollama"), make("ollama-model")
    models = folder / "ollama"
    models.mkdir()
    _create_model(binary, modelfile, models)
    launch = {"engine": "ollama", "binary": binary, "model": str(models), "env": {"HOME": str(folder)}}
    return {"name": "ollama", "launch": launch, "models": {"smollm2:latest": MODEL}}


def _create_model(binary: str, modelfile: str, models: Path) -> None:
    """Put the model into Ollama's folder, with a server that runs for that alone."""
    import socket
    import time

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    env = {**os.environ, "OLLAMA_HOST": f"127.0.0.1:{port}", "OLLAMA_MODELS": str(models), "HOME": str(models.parent)}
    server = subprocess.Popen([binary, "serve"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            if subprocess.run([binary, "list"], env=env, capture_output=True, check=False).returncode == 0:
                break
            time.sleep(0.1)
        created = subprocess.run(
            [binary, "create", MODEL, "-f", modelfile], env=env, capture_output=True, text=True, check=False
        )
        if created.returncode:
            raise Unavailable(f"ollama create failed: {created.stderr.strip()[-300:]}")
    finally:
        server.terminate()
        server.wait(20)
