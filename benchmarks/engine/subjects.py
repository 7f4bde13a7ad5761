"""The engines that the benchmark compares, as processes of its own: the built-in one, llama.cpp, vLLM's CPU build."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from adapters.base import Endpoint
from adapters.launch import LaunchSpec
from adapters.managed import ManagedEngine
from adapters.process import memory_use
from adapters.registry import create
from gateway.deployments import EngineWord, build_deployments
from measure.probe import Probe
from policies.types import Hardware, Precision
from scripts.lib.local_engines import MODEL, is_made, make

CONTEXT = 1024
TOGETHER = 8
"""Requests that run at once, and so many slots has each engine."""
PREFERRED_BATCH = 2048
"""Prompt tokens a step: llama.cpp's own choice, not the small one with which Paceline starts it."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One engine that runs, with what sends it measurement requests."""

    name: str
    probe: Probe
    process: ManagedEngine
    start_s: float
    """From the process's start until it was ready."""

    def memory_bytes(self) -> int | None:
        """Return the most memory that its processes had."""
        pid = self.process.pid
        used = None if pid is None else memory_use(pid)
        return used.host_bytes if used is not None else None

    @property
    def lingers_s(self) -> float:
        """Seconds for which it keeps a core busy after its last answer."""
        return self.probe.adapter.lingers_s


def specs(folder: Path, precisions: Sequence[Precision], *, with_vllm: bool) -> list[LaunchSpec]:
    """Return how all of them are started. Raises ``NotMade`` for a model or an environment that cannot be had."""
    found = [_builtin(folder, precision) for precision in precisions]
    found += [_llamacpp(folder, precision) for precision in precisions if precision in _GGUF]
    if with_vllm and is_made("vllm"):
        found.append(_vllm(folder))
    return found


@asynccontextmanager
async def running(spec: LaunchSpec) -> AsyncIterator[Subject]:
    """Run one of them. Raises ``LaunchError`` when it does not come up."""
    process, clock = ManagedEngine(spec), asyncio.get_running_loop().time
    begun = clock()
    process.start()
    try:
        await process.wait_up()
        start_s = clock() - begun
        adapter = create(spec.engine, Endpoint(spec.name, process.url, precision=spec.precision))
        try:
            description = process.complete(await adapter.describe())
            (deployment,) = build_deployments(EngineWord(spec.name, spec.precision), description, Hardware("local"))
            yield Subject(spec.name, Probe(adapter, deployment), process, start_s)
        finally:
            await adapter.aclose()
    finally:
        await process.stop()


_GGUF = {
    Precision.FP32: "f32",
    Precision.BF16: "bf16",
    Precision.FP16: "f16",
    Precision.INT8: "q8_0",
    Precision.INT4: "q4_1",
}


def _builtin(folder: Path, precision: Precision) -> LaunchSpec:
    return LaunchSpec(
        name=f"built-in {precision}",
        engine="builtin",
        model=make("safetensors"),
        alias=MODEL,
        precision=precision,
        python=Path(make("builtin")),
        context=CONTEXT,
        slots=TOGETHER,
        args=("--speculative", "off"),  # the others guess nothing either
        log_file=folder / f"builtin-{precision}.log",
    )


def _llamacpp(folder: Path, precision: Precision) -> LaunchSpec:
    return LaunchSpec(
        name=f"llama.cpp {_GGUF[precision].upper()}",
        engine="llamacpp",
        model=make("model", "--precision", _GGUF[precision]),
        context=CONTEXT,
        slots=TOGETHER,
        batch=PREFERRED_BATCH,
        log_file=folder / f"llamacpp-{precision}.log",
    )


def _vllm(folder: Path) -> LaunchSpec:
    return LaunchSpec(
        name="vLLM bf16",
        engine="vllm",
        model=make("safetensors"),
        precision=Precision.BF16,
        python=Path(make("vllm")),
        context=CONTEXT,
        slots=TOGETHER,
        log_file=folder / "vllm.log",
    )
