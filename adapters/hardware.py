"""What an engine runs on: this machine's CPU, memory and GPUs, and which of them an engine's process uses."""

from __future__ import annotations

import functools
import ipaddress
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from adapters import cgroup
from adapters.gpus import Gpu, gpu_memory, gpus
from adapters.process import family, gpu_device_numbers
from policies.types import Hardware

GIB = 1 << 30
CPU_FEATURES = (
    *("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16"),
    *("asimddp", "i8mm", "bf16", "sve"),
)
"""Instruction sets that decide which kernels an engine can use; a virtual machine's CPU name does not tell them."""
_LOADS_ON_DEMAND = frozenset({"ollama", "lmstudio"})


@dataclass(frozen=True, slots=True)
class HardwareFacts:
    """This machine, as far as a speed depends on it. ``usable_cores`` is what affinity and control groups leave."""

    host: str
    cpu: str
    cpu_features: tuple[str, ...]
    physical_cores: int
    logical_cores: int
    usable_cores: float
    ram_bytes: int
    gpus: tuple[Gpu, ...]

    @property
    def cpu_description(self) -> str:
        """The CPU and memory in one stable line, without the host's name."""
        features = f" ({' '.join(self.cpu_features)})" if self.cpu_features else ""
        cores = f"{self.usable_cores:g} of {self.logical_cores} logical cores"
        if self.usable_cores == self.logical_cores:
            cores = f"{self.logical_cores} logical cores"
        return f"{self.cpu}{features}, {cores}, {round(self.ram_bytes / GIB)} GiB"


@functools.cache
def hardware_facts() -> HardwareFacts:
    """The facts of this machine, looked up once: some milliseconds, tens of them where there is a GPU."""
    logical = os.cpu_count() or 1
    ram = psutil.virtual_memory().total
    model, features = _cpu()
    return HardwareFacts(
        host=socket.gethostname(),
        cpu=model,
        cpu_features=features,
        physical_cores=psutil.cpu_count(logical=False) or logical,
        logical_cores=logical,
        usable_cores=usable_cores(),
        ram_bytes=min(ram, cgroup.memory_limit() or ram),
        gpus=gpus(),
    )


def usable_cores() -> float:
    """Logical cores that this process may keep busy: its affinity, and the quota of its control group."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(float(allowed), cgroup.cpu_quota() or allowed)


def is_local(url: str) -> bool:
    """Whether an address is on this machine. Names are not looked up: only ``localhost`` and its own name are it."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower().rstrip(".")
    if parts.scheme == "http+unix" or host in {"localhost", socket.gethostname().lower()}:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified or str(address) in _own_addresses()


def hardware_of(url: str, pid: int | None = None, *, kind: str = "") -> Hardware:
    """What the engine at ``url`` runs on. ``pid`` is its process where it is known, ``kind`` the kind of engine.

    A local engine is on the GPUs that its process (with its children) uses, else on the CPU. One whose process is
    hidden, or that loads its models later, may use any GPU: it is on all of them. All that is behind one remote host
    counts as one device, ``HOST/unknown``. Asks the process table and the driver: some tens of milliseconds.
    """
    if not is_local(url):
        host = urlsplit(url).hostname or url
        return Hardware(host, frozenset({f"{host}/unknown"}), f"{host}: unknown hardware")
    facts = hardware_facts()
    used = facts.gpus if pid is None else _gpus_of(pid, facts.gpus)
    if not used and kind in _LOADS_ON_DEMAND:
        used = facts.gpus
    devices = [f"{facts.host}/{gpu.uuid}" for gpu in used]
    if not used or pid is None:
        devices.append(f"{facts.host}/cpu")
    description = f"{_describe(used)}, {facts.cpu_description}" if used else facts.cpu_description
    return Hardware(facts.host, frozenset(devices), description)


def _gpus_of(pid: int, known: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    if not known:
        return ()
    processes = family(pid)
    used = gpu_memory(processes)
    if used:
        return tuple(gpu for gpu in known if gpu.uuid in used)
    opened = gpu_device_numbers(processes)  # in a container, NVML may know these processes by other numbers
    return tuple(gpu for gpu in known if gpu.minor in opened)


def _describe(used: Iterable[Gpu]) -> str:
    names = sorted(f"{gpu.name} {round(gpu.vram_bytes / GIB)} GiB (driver {gpu.driver})" for gpu in used)
    return " + ".join(
        f"{names.count(name)} × {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)
    )


def _cpu() -> tuple[str, tuple[str, ...]]:
    """The CPU's name and those of its features that matter."""
    if sys.platform == "darwin":
        sysctl = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        try:
            asked = subprocess.run(sysctl, capture_output=True, text=True, timeout=2, check=True)
        except (OSError, subprocess.SubprocessError):
            return platform.machine(), ()
        return asked.stdout.strip(), ()
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return platform.processor() or platform.machine(), ()
    return cpu_from(first)


def cpu_from(cpuinfo: str) -> tuple[str, tuple[str, ...]]:
    """The name and the features in one CPU's part of ``/proc/cpuinfo``, as x86 or Arm write it."""
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in cpuinfo.splitlines())}
    flags = (facts.get("flags") or facts.get("Features") or "").split()
    if name := facts.get("model name"):
        name = " ".join(name.split())
        if "cpu family" in facts:
            name += f" [{facts['cpu family']}/{facts.get('model', '')}]"
    else:
        parts = (facts.get(part, "") for part in ("CPU implementer", "CPU part", "CPU variant"))
        name = f"{platform.machine()} {'/'.join(part for part in parts if part)}".strip()
    return name, tuple(feature for feature in CPU_FEATURES if feature in flags)


@functools.cache
def _own_addresses() -> frozenset[str]:
    return frozenset(a.address.partition("%")[0] for each in psutil.net_if_addrs().values() for a in each)
