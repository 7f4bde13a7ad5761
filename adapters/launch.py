"""How an engine is started: its command line and environment, for each kind that Paceline can start."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import math
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from adapters.gpus import has_gpu
from adapters.hardware import usable_cores
from adapters.ports import LOOPBACK
from policies.types import Precision

CPU_BATCH: Final = 128
"""Prompt tokens that llama.cpp reads in one step on a CPU: about a second, so that it notices a client that leaves."""
SHARED_SPIN: Final = {"GOMP_SPINCOUNT": "500"}
ALONE_SPIN: Final = {"GOMP_SPINCOUNT": "2000"}
"""How long llama.cpp's threads (GNU OpenMP) spin while they wait for each other: on cores that other engines need as
well, and on those where only programs that are nothing of ours may come along.

Measured with two servers on 2 cores, tokens/s of one that decodes alone, and of each beside the other, on two machines:
by default 83 and 6 to 8, 81 and 1 to 3; 20000: 92 and 3 to 4, 80 and 6; 2000: 88 and 16 to 19, 77 and 23; 1000 (on one)
78 and 29; 500: 79 and 30, 65 and 35; 200: 75 and 42, 37 and 35; without any spinning 33 and 45. It depends on how long
a thread takes to wake up, a matter of the machine: 500 lost little on either.
"""
BUILTIN_SHARED_SPIN: Final = {"GOMP_SPINCOUNT": "8000"}
"""The same for the built-in engine (torch) beside others; alone, its own 20000 stand. Its steps are hundreds of short
operations: a thread that sleeps costs each of them its waking. Tokens/s of one request and of eight together, on 2
cores, of one engine alone, and of each of two at work at once: 2000: 26 and 170, 19 and 122; 4000: 29 and 182, 16 and
104; 8000: 38 and 222, 12 and 85; 20000: 39 and 240, and the two held each other up, as by default.
"""
DEFAULT_CONTEXT: Final = 4096
DEFAULT_SLOTS: Final = 4


class LaunchError(Exception):
    """An engine cannot be started, did not come up, or ended.

    ``log`` are the last lines that it printed. ``is_hopeless`` says that it takes a person before it can work.
    """

    def __init__(self, message: str, *, log: str = "", is_hopeless: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.log = log
        self.is_hopeless = is_hopeless

    @property
    def line(self) -> str:
        """The message in one line, with the last line of the log."""
        last = self.log.strip().rpartition("\n")[2].strip()
        return f"{self.message} ({last})" if last else self.message

    def __str__(self) -> str:
        return f"{self.message}; its last lines:\n{self.log}" if self.log else self.message


class CannotStart(LaunchError):
    """Something is missing that only a person can provide."""

    def __init__(self, message: str) -> None:
        super().__init__(message, is_hopeless=True)


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """An engine to start, as ``launch:`` in the configuration describes it.

    ``model`` is a GGUF file for llama.cpp, a folder or a hub name for vLLM, a GGUF file or a folder for the built-in
    engine, and for Ollama the folder that holds its models (empty: Ollama's own). ``context`` is in tokens per request,
    ``batch`` in prompt tokens a step. ``args`` are passed on as they are, ``env`` is added to the environment and comes
    last. ``port`` None takes a free one.
    """

    name: str
    engine: str
    model: str = ""
    alias: str = ""
    """The model's name in the engine's answers; by default that of its file or folder."""
    precision: Precision | None = None
    """For vLLM and the built-in engine, which can load a model in another one; the others run what the file holds."""
    binary: Path | None = None
    python: Path | None = None
    context: int | None = None
    slots: int | None = None
    threads: int | None = None
    batch: int | None = None
    port: int | None = None
    shares_cores: bool = False
    """Whether other engines run on the same cores."""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    ready_timeout_s: float = 600.0
    stop_timeout_s: float = 10.0
    log_file: Path | None = None
    log_bytes: int = 8 << 20
    """Size at which ``log_file`` becomes ``log_file.1``; there are never more than these two."""

    @property
    def digest(self) -> str:
        """What of it changes an engine's speed, beside what the engine itself reports: for fingerprints."""
        parts = (
            self.binary,
            self.python,
            self.precision,
            self.threads,
            self.batch,
            self.shares_cores,
            self.args,
            sorted(self.env.items()),
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class Command:
    """What to run: arguments, variables to add to the environment, where it will listen and how to ask if it is ready.

    ``version`` is filled in where it is known beforehand and the engine itself does not tell it.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    url: str
    health_path: str
    version: str = ""


def command(spec: LaunchSpec, port: int) -> Command:
    """Return how to start the engine on a port. Raises CannotStart when a program or a file is missing."""
    build = _BUILDERS.get(spec.engine)
    if build is None:
        raise CannotStart(f"Paceline cannot start {spec.engine!r}; it starts {', '.join(_BUILDERS)}")
    return build(spec, port)


def _builtin(spec: LaunchSpec, port: int) -> Command:
    if not Path(spec.model).exists():
        raise CannotStart(f"no such model: {spec.model}")
    if spec.python is None and not importlib.util.find_spec("torch"):
        raise CannotStart("the built-in engine needs torch and more: pip install 'paceline[engine]'")
    python = shutil.which(spec.python or sys.executable)
    if not python:
        raise CannotStart(f"no such program: {spec.python}")
    if not _is_model(Path(spec.model)):
        raise CannotStart(f"{spec.model} is neither a model folder, which has a config.json, nor a GGUF file")
    start = [python, "-P", "-c", _RUN_ENGINE, str(Path(__file__).resolve().parents[1]), "--model", spec.model]
    start += ["--host", LOOPBACK, "--port", str(port)]
    on_cpu = not has_gpu()
    for option, value in (
        ("--served-name", spec.alias),
        ("--precision", spec.precision),
        ("--context", spec.context),
        ("--max-sequences", spec.slots),
        ("--token-budget", spec.batch),
        ("--threads", spec.threads or (_fewer_cores() if on_cpu else None)),
    ):
        if value:
            start += [option, str(value)]
    env: Mapping[str, str] = {}
    if spec.shares_cores:
        env = BUILTIN_SHARED_SPIN if on_cpu else {}
        # How often guesses come true depends on the text, up to 2.5 times as fast: nobody could tell which of several
        # engines will be done first. Where there is no other to choose, they are a gain.
        start += ["--speculative", "off"]
    return Command((*start, *spec.args), {**env, **spec.env}, f"http://{LOOPBACK}:{port}", "/ready")


def _llamacpp(spec: LaunchSpec, port: int) -> Command:
    if not Path(spec.model).is_file():
        raise CannotStart(f"no such model file: {spec.model}")
    slots, context = spec.slots or DEFAULT_SLOTS, spec.context or DEFAULT_CONTEXT
    binary = _program(spec, "llama-server")
    if binary:
        on_cpu, version = not (has_gpu() or sys.platform == "darwin"), ""
        start = [binary, "--ctx-size", str(context * slots), "--metrics", "--jinja"]
    elif importlib.util.find_spec("xllamacpp"):
        on_cpu, version = sys.platform != "darwin", f"xllamacpp {importlib.metadata.version('xllamacpp')}"
        # As a file, so that it runs from any folder; -P, so that its neighbours do not hide other modules.
        start = [sys.executable, "-P", str(Path(__file__).with_name("llama_server.py")), "--ctx-size", str(context)]
    else:
        raise CannotStart("there is no llama-server: install llama.cpp, or pip install 'paceline[llamacpp]'")
    start += ["--model", spec.model, "--alias", spec.alias or Path(spec.model).stem, "--host", LOOPBACK]
    start += ["--port", str(port), "--parallel", str(slots)]
    batch = spec.batch or (CPU_BATCH if on_cpu else None)
    if batch:
        start += ["--batch-size", str(batch)]
    threads = spec.threads or (_fewer_cores() if on_cpu else None)
    if threads:
        start += ["--threads", str(threads)]
    spin = SHARED_SPIN if spec.shares_cores else ALONE_SPIN
    env = spin if on_cpu else {}
    return Command((*start, *spec.args), env | dict(spec.env), f"http://{LOOPBACK}:{port}", "/health", version)


def _vllm(spec: LaunchSpec, port: int) -> Command:
    python = str(spec.python) if spec.python else _python_of("vllm")
    if not python or not shutil.which(python):
        raise CannotStart("vLLM runs in a Python environment of its own: set 'python' to that environment's Python")
    is_folder = Path(spec.model).is_dir()
    name = spec.alias or (Path(spec.model).resolve().name if is_folder else spec.model)
    start = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", spec.model, "--served-model-name", name]
    start += ["--host", LOOPBACK, "--port", str(port), "--enable-prompt-tokens-details"]  # how many it had in its cache
    if spec.precision in _VLLM_DTYPES:
        start += ["--dtype", _VLLM_DTYPES[spec.precision]]
    for option, value in (
        ("--max-model-len", spec.context),
        ("--max-num-seqs", spec.slots),
        ("--max-num-batched-tokens", spec.batch),
    ):
        if value:
            start += [option, str(value)]
    env: dict[str, str] = {"HF_HUB_OFFLINE": "1"} if is_folder else {}
    if not has_gpu():
        start.append("--enforce-eager")  # compiling takes minutes on a CPU
        env |= {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "2"}  # GiB
        if spec.threads:
            env |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(spec.threads)}
    return Command((*start, *spec.args), env | dict(spec.env), f"http://{LOOPBACK}:{port}", "/health")


def _ollama(spec: LaunchSpec, port: int) -> Command:
    binary = _program(spec, "ollama")
    if not binary:
        raise CannotStart("there is no ollama: install it, or set 'binary' to where it is")
    env = {"OLLAMA_HOST": f"{LOOPBACK}:{port}"}
    if spec.model:
        if not Path(spec.model).is_dir():
            raise CannotStart(f"'model' is the folder of Ollama's models, and there is no folder {spec.model}")
        env["OLLAMA_MODELS"] = str(Path(spec.model).resolve())
    if spec.slots:
        env["OLLAMA_NUM_PARALLEL"] = str(spec.slots)
    if spec.context:
        env["OLLAMA_CONTEXT_LENGTH"] = str(spec.context)
    return Command((binary, "serve", *spec.args), env | dict(spec.env), f"http://{LOOPBACK}:{port}", "/api/version")


_RUN_ENGINE: Final = """\
import runpy, sys
sys.path.append(sys.argv.pop(1))
runpy.run_module("engine", run_name="__main__", alter_sys=True)
"""
"""``-m engine``, for a Python that does not have Paceline: what it has itself comes first."""

_BUILDERS: Final[Mapping[str, Callable[[LaunchSpec, int], Command]]] = {
    "builtin": _builtin,
    "llamacpp": _llamacpp,
    "vllm": _vllm,
    "ollama": _ollama,
}

_VLLM_DTYPES: Final[Mapping[Precision | None, str]] = {
    Precision.FP32: "float32",
    Precision.FP16: "float16",
    Precision.BF16: "bfloat16",
}


def _is_model(path: Path) -> bool:
    if path.is_dir():
        return (path / "config.json").is_file()
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def _program(spec: LaunchSpec, name: str) -> str:
    """The program to run: the one that the operator named, or the one on PATH; empty when there is none."""
    if spec.binary is None:
        return shutil.which(name) or ""
    found = shutil.which(spec.binary)
    if not found:
        raise CannotStart(f"no such program: {spec.binary}")
    return found


def _fewer_cores() -> int | None:
    """The cores that are left of all, ``None`` when all are: engines see affinity at best, and no container's quota."""
    cores = math.ceil(usable_cores())
    return cores if cores < (os.cpu_count() or 1) else None


def _python_of(script: str) -> str:
    """The Python of the environment that a console script on PATH belongs to; empty when there is none."""
    found = shutil.which(script)
    python = Path(found).resolve().parent / "python" if found else None
    return str(python) if python and os.access(python, os.X_OK) else ""
