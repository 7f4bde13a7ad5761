"""NVIDIA GPUs through NVML: which there are, which processes use them. No driver is no error: there are none."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SLOWED = 0x8 | 0x20 | 0x40 | 0x80
"""NVML's bits for a slowdown by hardware, by the driver for heat, by hardware for heat, and by a power brake. That it
stays below its power cap is what a GPU does under full load: no bit of these."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. ``minor`` is the number of its device file; ``vram_bytes`` is 0 where it shares the host's memory."""

    uuid: str
    name: str
    vram_bytes: int
    driver: str
    minor: int | None = None


@functools.cache
def gpus() -> tuple[Gpu, ...]:
    """The GPUs of this machine, looked up once. The first call takes some tens of milliseconds where there is one."""
    nvml = _nvml()
    if nvml is None:
        return ()
    driver = str(_ask(nvml, nvml.nvmlSystemGetDriverVersion) or "")
    found: list[Gpu] = []
    for device in _devices(nvml):
        memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, device)
        found.append(
            Gpu(
                uuid=str(_ask(nvml, nvml.nvmlDeviceGetUUID, device) or f"GPU-{len(found)}"),
                name=str(_ask(nvml, nvml.nvmlDeviceGetName, device) or "GPU"),
                vram_bytes=int(memory.total) if memory is not None else 0,
                driver=driver,
                minor=_ask(nvml, nvml.nvmlDeviceGetMinorNumber, device),
            )
        )
    return tuple(found)


def has_gpu() -> bool:
    """Whether an engine can find an NVIDIA or AMD GPU here."""
    return Path("/dev/kfd").exists() or bool(gpus())


def gpu_memory(pids: frozenset[int]) -> dict[str, int | None]:
    """Bytes that these processes hold on each GPU that they use, by its UUID; ``None`` where the driver does not say.

    In a container the driver may know the processes by other numbers: then nothing is found.
    """
    nvml = _nvml()
    used: dict[str, int | None] = {}
    if nvml is None:
        return used
    for gpu, device in zip(gpus(), _devices(nvml), strict=False):
        for process in _ask(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, device) or ():
            if process.pid in pids:
                before, more = used.get(gpu.uuid, 0), process.usedGpuMemory
                used[gpu.uuid] = None if before is None or more is None else before + int(more)
    return used


def slowed_gpus() -> bool | None:
    """Whether any GPU runs below its speed at this moment, for heat or power; ``None`` where no driver says."""
    nvml = _nvml()
    if nvml is None:
        return None
    reasons = [_ask(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, device) for device in _devices(nvml)]
    known = [reason for reason in reasons if reason is not None]
    return any(reason & _SLOWED for reason in known) if known else None


@dataclass(frozen=True, slots=True)
class GpuLoad:
    """What one GPU does now: ``use`` is the share of the last moment in which it worked, 0 to 1."""

    use: float | None
    used_bytes: int | None
    whole_bytes: int | None


def gpu_loads() -> tuple[GpuLoad, ...]:
    """What each GPU does at this moment; empty where no driver says. Takes about a millisecond a GPU."""
    nvml = _nvml()
    if nvml is None:
        return ()
    loads = []
    for device in _devices(nvml):
        rates, memory = (
            _ask(nvml, ask, device) for ask in (nvml.nvmlDeviceGetUtilizationRates, nvml.nvmlDeviceGetMemoryInfo)
        )
        loads.append(
            GpuLoad(
                use=None if rates is None else rates.gpu / 100,
                used_bytes=None if memory is None else int(memory.used),
                whole_bytes=None if memory is None else int(memory.total),
            )
        )
    return tuple(loads)


@functools.cache
def _nvml() -> Any | None:
    """The NVML binding, ready for use, or ``None``. Imported only where there is a driver: it takes its time."""
    if sys.platform == "linux" and not any(Path("/dev", name).exists() for name in ("nvidiactl", "dxg")):
        return None
    if sys.platform == "darwin":
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _devices(nvml: Any) -> Iterator[Any]:
    for index in range(_ask(nvml, nvml.nvmlDeviceGetCount) or 0):
        device = _ask(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
        if device is not None:
            yield device


def _ask(nvml: Any, question: Any, *arguments: Any) -> Any | None:
    """The driver's answer; ``None`` where it has none, as for some facts of some GPUs."""
    with contextlib.suppress(nvml.NVMLError):
        return question(*arguments)
    return None
