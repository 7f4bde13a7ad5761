"""Processes of this machine that an engine runs in: who listens where, how much memory they took, what they serve.

Everything here asks the operating system synchronously (milliseconds, with many processes tens of them), and tells
nothing of processes that this user may not look into.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from adapters.gpus import gpu_memory

_HIDDEN = (psutil.Error, OSError)
_FORWARDERS = frozenset({"docker-proxy", "com.docker.backend", "rootlessport", "slirp4netns", "pasta", "wslrelay.exe"})
"""They listen for an engine in a container or virtual machine, which cannot be looked into from here."""
_GPU_FILE = re.compile(r"/dev/nvidia(\d+)")
_MODEL_OPTIONS = frozenset({"--model", "--model-path", "-m", "serve"})


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory of a process and its children. ``is_peak`` is false where only the present use is known.

    The processes' own figures are added: memory that they share counts once for each, and their peaks may not have
    been at the same time. ``gpu_bytes`` is the present use, ``None`` where there is no GPU or it does not say.
    """

    host_bytes: int
    is_peak: bool
    gpu_bytes: int | None = None


def find_listener(port: int) -> int | None:
    """The process that listens on a local TCP port, or ``None`` where there is none or it is hidden."""
    owners: Iterable[int | None]
    try:
        everything = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:  # macOS shows a user only his own processes, one by one
        owners = (pid for pid in psutil.pids() if port in _listening(pid))
    else:
        owners = (c.pid for c in everything if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port)
    return next((pid for pid in owners if pid and _name(pid) not in _FORWARDERS), None)


def family(pid: int) -> frozenset[int]:
    """A process and all its descendants; empty when it is gone."""
    try:
        process = psutil.Process(pid)
        return frozenset({pid, *(child.pid for child in process.children(recursive=True))})
    except _HIDDEN:
        return frozenset()


def memory_use(pid: int) -> MemoryUse | None:
    """The memory that a process and its children took at most, where the system keeps count; ``None`` when gone."""
    pids = family(pid)
    peaks = [peak for each in pids if (peak := peak_bytes(each)) is not None]
    present = [rss for each in pids if (rss := resident_bytes(each)) is not None] if not peaks else []
    if not peaks and not present:
        return None
    on_gpus = [used for used in gpu_memory(pids).values() if used is not None]
    return MemoryUse(sum(peaks or present), is_peak=bool(peaks), gpu_bytes=sum(on_gpus) if on_gpus else None)


def present_memory(pid: int) -> int | None:
    """The bytes that a process and its children hold now, on the host and on GPUs; ``None`` when gone or hidden."""
    pids = family(pid)
    held = [rss for each in pids if (rss := resident_bytes(each)) is not None]
    on_gpus = [used for used in gpu_memory(pids).values() if used is not None]
    return sum(held) + sum(on_gpus) if held else None


def model_path(pid: int) -> Path | None:
    """The model file or folder that an engine's command line names, when it can be read from here."""
    try:
        process = psutil.Process(pid)
        arguments, folder = process.cmdline(), Path(process.cwd())
    except _HIDDEN:
        return None
    for option, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = option.partition("=")
        if name in _MODEL_OPTIONS:
            path = folder / (value if equals else following)
            with contextlib.suppress(OSError):
                if path != folder and path.exists():
                    return path
    return None


def gpu_device_numbers(pids: Iterable[int]) -> frozenset[int]:
    """Numbers of the NVIDIA device files that these processes have open. Linux; empty elsewhere."""
    numbers = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for link in Path("/proc", str(pid), "fd").iterdir():
                with contextlib.suppress(OSError):
                    if file := _GPU_FILE.fullmatch(str(link.readlink())):
                        numbers.add(int(file[1]))
    return frozenset(numbers)


def _name(pid: int) -> str:
    with contextlib.suppress(*_HIDDEN):
        return psutil.Process(pid).name()
    return ""


def peak_bytes(pid: int) -> int | None:
    """The most memory that one process has held so far; ``None`` where the system keeps no count (not Linux)."""
    with contextlib.suppress(OSError):
        for line in Path("/proc", str(pid), "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def resident_bytes(pid: int) -> int | None:
    """The memory that one process holds now; ``None`` when it is gone."""
    with contextlib.suppress(*_HIDDEN):
        return int(psutil.Process(pid).memory_info().rss)
    return None


def cpu_seconds(pid: int) -> float | None:
    """The processor time that one process has used, all of its threads; ``None`` when it is gone."""
    with contextlib.suppress(*_HIDDEN):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return None


def _listening(pid: int) -> frozenset[int]:
    with contextlib.suppress(*_HIDDEN):
        connections = psutil.Process(pid).net_connections(kind="tcp")
        return frozenset(c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN and c.laddr)
    return frozenset()
