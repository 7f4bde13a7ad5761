"""What is known of the machine, and of what an engine's process uses of it."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import psutil
import pytest

from adapters import cgroup, gpus, hardware
from adapters.base import ModelDescription
from adapters.fingerprint import differences, fingerprint, traits
from adapters.gpus import Gpu
from adapters.hardware import HardwareFacts, cpu_from, hardware_facts, hardware_of, is_local
from policies.types import Hardware, Precision

HOST = socket.gethostname()
XEON = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R)   Platinum 8480+
flags\t\t: fpu avx2 avx512f avx512_vnni amx_int8 amx_bf16
"""
GRAVITON = """processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd asimddp sve i8mm bf16
CPU implementer\t: 0x41
CPU variant\t: 0x1
CPU part\t: 0xd40
"""


def test_the_machines_facts_are_those_that_the_system_tells() -> None:
    facts = hardware_facts()
    assert facts.host == HOST
    assert facts.logical_cores == os.cpu_count()
    assert 0 < facts.usable_cores <= facts.logical_cores
    assert 0 < facts.ram_bytes <= psutil.virtual_memory().total
    assert facts.cpu in facts.cpu_description


def test_a_cpu_is_described_by_its_name_and_the_instructions_that_decide_over_kernels() -> None:
    name, features = cpu_from(XEON)
    assert name == "Intel(R) Xeon(R) Platinum 8480+ [6/143]"
    assert features == ("avx2", "avx512f", "avx512_vnni", "amx_int8", "amx_bf16")
    name, features = cpu_from(GRAVITON)
    assert name.endswith("0x41/0xd40/0x1")
    assert features == ("asimddp", "i8mm", "bf16", "sve")


def test_a_description_says_when_only_some_cores_may_be_used() -> None:
    facts = HardwareFacts("h", "CPU", (), 4, 8, 8.0, 16 << 30, ())
    assert facts.cpu_description == "CPU, 8 logical cores, 16 GiB"
    assert replace(facts, usable_cores=2.5).cpu_description == "CPU, 2.5 of 8 logical cores, 16 GiB"


def control_groups(root: Path, membership: str, files: dict[str, str]) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(membership)
    for name, text in files.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def test_the_tightest_limit_of_all_control_groups_above_counts(tmp_path: Path) -> None:
    control_groups(
        tmp_path,
        "0::/machine.slice/paceline.service\n",
        {
            "machine.slice/cpu.max": "150000 100000\n",
            "machine.slice/memory.max": "4294967296\n",
            "machine.slice/paceline.service/cpu.max": "max 100000\n",
            "machine.slice/paceline.service/memory.max": "max\n",
        },
    )
    assert cgroup.cpu_quota(tmp_path) == 1.5
    assert cgroup.memory_limit(tmp_path) == 4 << 30


def test_limits_of_the_older_control_groups_are_found_from_inside_a_container(tmp_path: Path) -> None:
    control_groups(
        tmp_path,
        "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n",
        {
            "cpu/cpu.cfs_quota_us": "200000\n",
            "cpu/cpu.cfs_period_us": "100000\n",
            "memory/memory.limit_in_bytes": "2147483648\n",
        },
    )
    assert cgroup.cpu_quota(tmp_path) == 2.0
    assert cgroup.memory_limit(tmp_path) == 2 << 30


def test_no_limit_is_no_limit(tmp_path: Path) -> None:
    assert cgroup.cpu_quota(tmp_path) is None
    control_groups(tmp_path, "5:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"})
    assert cgroup.cpu_quota(tmp_path) is None
    assert cgroup.memory_limit(tmp_path) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "[::1]", "localhost", "0.0.0.0", HOST])
def test_loopback_and_the_machines_own_name_are_this_machine(host: str) -> None:
    assert is_local(f"http://{host}:8080")


def test_an_address_of_an_interface_is_this_machine_and_others_are_not() -> None:
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family is socket.AF_INET:
                assert is_local(f"http://{address.address}:8080")
    assert is_local("http+unix://%2Frun%2Fengine.sock")
    assert not is_local("http://192.0.2.7:8080")
    assert not is_local("https://engine.example")


def test_all_engines_on_one_remote_host_share_it() -> None:
    one, other = hardware_of("http://gpu-box:8000"), hardware_of("http://gpu-box:8001")
    assert one.devices == {"gpu-box/unknown"}
    assert one.shares(other)
    assert not one.shares(hardware_of("http://gpu-box-2:8000"))
    assert not one.shares(hardware_of("http://localhost:8000"))


@dataclass
class Driver:
    """Answers in place of NVML: two GPUs, and which process uses which."""

    processes: dict[int, list[SimpleNamespace]]
    throttled: ClassVar[dict[int, int]] = {}

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(CARDS)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> list[SimpleNamespace]:  # noqa: N802
        return self.processes.get(device, [])

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "570.1"

    def nvmlDeviceGetUUID(self, device: int) -> str:  # noqa: N802
        return CARDS[device].uuid

    def nvmlDeviceGetName(self, device: int) -> str:  # noqa: N802
        return CARDS[device].name

    def nvmlDeviceGetMinorNumber(self, device: int) -> int:  # noqa: N802
        return device

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device: int) -> int:  # noqa: N802
        if not CARDS[device].vram_bytes:
            raise Driver.NVMLError("not supported")
        return self.throttled.get(device, 0)

    def nvmlDeviceGetMemoryInfo(self, device: int) -> SimpleNamespace:  # noqa: N802
        if not CARDS[device].vram_bytes:
            raise Driver.NVMLError("not supported: it shares the host's memory")
        return SimpleNamespace(total=CARDS[device].vram_bytes)


CARDS = (Gpu("GPU-a", "NVIDIA L40S", 48 << 30, "570.1", 0), Gpu("GPU-b", "NVIDIA GB10", 0, "570.1", 1))


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[SimpleNamespace]]:
    """A machine with two GPUs (by a stand-in for the driver: none is at hand): its processes by GPU, to be filled."""
    processes: dict[int, list[SimpleNamespace]] = {}
    monkeypatch.setattr(gpus, "_nvml", lambda: Driver(processes))
    gpus.gpus.cache_clear()
    monkeypatch.setattr(hardware, "hardware_facts", lambda: FACTS)
    monkeypatch.setattr(hardware, "gpu_device_numbers", lambda pids: frozenset())
    yield processes
    gpus.gpus.cache_clear()


FACTS = HardwareFacts("box", "CPU", (), 4, 8, 8.0, 16 << 30, CARDS)


def test_gpus_are_described_by_the_driver_and_lack_what_it_does_not_tell(two_gpus: object) -> None:
    assert gpus.gpus() == CARDS


def test_an_engine_is_on_the_gpus_that_its_process_uses_and_else_on_the_cpu(
    two_gpus: dict[int, list[SimpleNamespace]],
) -> None:
    me = os.getpid()
    assert hardware_of("http://127.0.0.1:1", me).devices == {"box/cpu"}
    two_gpus[0] = [SimpleNamespace(pid=me, usedGpuMemory=1 << 30), SimpleNamespace(pid=1, usedGpuMemory=1)]
    found = hardware_of("http://127.0.0.1:1", me)
    assert found.devices == {"box/GPU-a"}
    assert found.description == "NVIDIA L40S 48 GiB (driver 570.1), CPU, 8 logical cores, 16 GiB"
    assert gpus.gpu_memory(frozenset({me})) == {"GPU-a": 1 << 30}


def test_a_driver_that_knows_the_process_by_another_number_is_helped_by_its_open_files(
    two_gpus: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "gpu_device_numbers", lambda pids: frozenset({1}))
    assert hardware_of("http://127.0.0.1:1", os.getpid()).devices == {"box/GPU-b"}


def test_an_engine_that_may_use_any_gpu_shares_with_all_of_them(two_gpus: object) -> None:
    every = {"box/GPU-a", "box/GPU-b"}
    assert hardware_of("http://127.0.0.1:1", None).devices == {*every, "box/cpu"}
    assert hardware_of("http://127.0.0.1:1", os.getpid(), kind="ollama").devices == every


def test_a_machine_without_a_driver_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_nvml", lambda: None)
    gpus.gpus.cache_clear()
    assert gpus.gpus() == ()
    assert gpus.gpu_memory(frozenset({os.getpid()})) == {}
    gpus.gpus.cache_clear()


MODEL = ModelDescription("m.gguf", Precision.INT8, "Q8_0", context=4096, slots=4, digest="abc", settings="jinja")
CPU = Hardware("box", frozenset({"box/cpu"}), "CPU, 8 logical cores, 16 GiB")


@pytest.mark.parametrize(
    ("kind", "version", "model", "machine", "difference"),
    [
        ("ollama", "b1", MODEL, CPU, "engine: llamacpp → ollama"),
        ("llamacpp", "b2", MODEL, CPU, "engine version: b1 → b2"),
        ("llamacpp", "b1", replace(MODEL, digest="abd"), CPU, "model: abc → abd"),
        ("llamacpp", "b1", replace(MODEL, precision=Precision.INT4), CPU, "precision: int8 → int4"),
        ("llamacpp", "b1", replace(MODEL, scheme=""), CPU, "quantisation: Q8_0 → none"),
        ("llamacpp", "b1", replace(MODEL, slots=2), CPU, "slots: 4 → 2"),
        ("llamacpp", "b1", replace(MODEL, context=8192), CPU, "context: 4096 → 8192"),
        ("llamacpp", "b1", replace(MODEL, settings=""), CPU, "settings: jinja → none"),
        ("llamacpp", "b1", MODEL, replace(CPU, description="GPU"), f"hardware: {CPU.description} → GPU"),
    ],
)
def test_whatever_a_speed_depends_on_makes_another_fingerprint_and_is_named(
    kind: str, version: str, model: ModelDescription, machine: Hardware, difference: str
) -> None:
    before, after = ("llamacpp", "b1", MODEL, CPU), (kind, version, model, machine)
    assert fingerprint(*before) != fingerprint(*after)
    assert differences(traits(*before), traits(*after)) == (difference,)


def test_what_does_not_matter_for_speed_keeps_the_fingerprint() -> None:
    renamed = replace(MODEL, engine_model="other.gguf", resident=False)
    elsewhere = Hardware("renamed", frozenset({"renamed/cpu"}), CPU.description)
    assert fingerprint("llamacpp", "b1", renamed, elsewhere) == fingerprint("llamacpp", "b1", MODEL, CPU)
    assert differences(traits("x", "1", MODEL, CPU), traits("x", "1", renamed, elsewhere)) == ()


@pytest.mark.parametrize(("reasons", "slowed"), [(0x0, False), (0x1, False), (0x4, False), (0x20, True), (0x48, True)])
def test_a_gpu_that_slows_down_for_heat_is_told_from_one_that_idles_or_stays_below_its_power_cap(
    two_gpus: object, monkeypatch: pytest.MonkeyPatch, reasons: int, slowed: bool
) -> None:
    monkeypatch.setattr(Driver, "throttled", {0: reasons})
    assert gpus.slowed_gpus() is slowed


def test_without_a_driver_nobody_knows_whether_a_gpu_slows_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_nvml", lambda: None)
    assert gpus.slowed_gpus() is None
