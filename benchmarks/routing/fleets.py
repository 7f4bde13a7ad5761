"""The simulated fleet: a workstation with two engines on its cores, a GPU with two more, a laptop, an old server."""

from __future__ import annotations

from benchmarks.routing.laws import QUIET_CORES, TIME_SLICED, Points, Sharing, SpeedLaw, speeds
from benchmarks.routing.scenario import Member
from policies.types import Capability, Deployment, Hardware, Precision, Quality

MODEL = "llm"


def fleet() -> tuple[Member, ...]:
    """Return the members. Speeds in tokens/s at some lengths: those of the CPU engines were measured with a small model
    on machines with two cores, those of the GPU and the laptop are of the same order as such hardware has."""
    return (
        _member(
            "workstation/fp16",
            "llamacpp",
            Precision.FP16,
            "workstation/cpu",
            read=((98, 595), (308, 509), (909, 410), (3600, 300)),
            write=((98, 46), (308, 35), (909, 26), (3600, 14)),
            slots=4,
            batch=0.3,
            stall=24.0,
            sharing=QUIET_CORES,
        ),
        _member(
            "workstation/q8",
            "llamacpp",
            Precision.INT8,
            "workstation/cpu",
            read=((98, 555), (308, 548), (909, 405), (3600, 300)),
            write=((98, 70), (308, 50), (909, 34), (3600, 17)),
            slots=4,
            batch=0.3,
            stall=24.0,
            sharing=QUIET_CORES,
            quality=Quality.PASSED,
        ),
        _member(
            "gpu/vllm",
            "vllm",
            Precision.BF16,
            "gpu/GPU-0",
            read=((100, 1500), (500, 2200), (3600, 2600)),
            write=((100, 62), (3600, 52)),
            slots=None,
            batch=0.05,
            stall=1.8,
            sharing=TIME_SLICED,
            overhead_s=0.04,
        ),
        _member(
            "gpu/ollama",
            "ollama",
            Precision.FP16,
            "gpu/GPU-0",
            read=((100, 1200), (500, 1700), (3600, 1800)),
            write=((100, 95), (3600, 70)),
            slots=2,
            batch=0.4,
            stall=8.0,
            sharing=TIME_SLICED,
            load_s=2.5,
            keep_loaded_s=60.0,
        ),
        _member(
            "laptop/mlx",
            "mlx",
            Precision.BF16,
            "laptop/cpu",
            read=((100, 420), (500, 480), (3600, 400)),
            write=((100, 40), (3600, 24)),
            slots=1,
            batch=0.0,
            stall=1.0,
            sharing=QUIET_CORES,
        ),
        _member(
            "server/q4",
            "llamacpp",
            Precision.INT4,
            "server/cpu",
            read=((98, 344), (308, 261), (909, 249), (3600, 200)),
            write=((98, 80), (308, 54), (909, 37), (3600, 18)),
            slots=2,
            batch=0.3,
            stall=24.0,
            sharing=QUIET_CORES,
        ),
    )


def _member(
    name: str,
    engine: str,
    precision: Precision,
    device: str,
    *,
    read: Points,
    write: Points,
    slots: int | None,
    batch: float,
    stall: float,
    sharing: Sharing,
    overhead_s: float = 0.02,
    load_s: float = 3.0,
    keep_loaded_s: float = float("inf"),
    quality: Quality = Quality.UNTESTED,
) -> Member:
    law = SpeedLaw(*speeds(read, write, overhead_s=overhead_s), batch, stall)
    host = device.partition("/")[0]
    deployment = Deployment(
        id=name,
        model=MODEL,
        engine=engine,
        endpoint=name,
        engine_model=MODEL,
        precision=precision,
        context=16384,
        slots=slots,
        capabilities=frozenset({Capability.CHAT}),
        hardware=Hardware(host, frozenset({device})),
        fingerprint=name,
        quality=quality,
    )
    return Member(deployment, law, sharing, load_s, keep_loaded_s)
