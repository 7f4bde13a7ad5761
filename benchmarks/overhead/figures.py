"""The loads that each gateway is put under, and the figures that come out of them."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Final

from benchmarks.overhead.load import Load
from benchmarks.overhead.processes import ROOT, Running
from benchmarks.overhead.upstream import CHUNKS


@dataclass(frozen=True, slots=True)
class Scene:
    """One kind of load."""

    clients: int
    stream: bool = False
    unique: bool = False


SCENES: Final = (Scene(1), Scene(16), Scene(64), Scene(1, stream=True), Scene(16, stream=True))


@dataclass(frozen=True, slots=True)
class Figure:
    """A column: how it is made from one round's loads (of the gateway, and of the upstream on its own)."""

    key: str
    title: str
    digits: int


FIGURES: Final = (
    Figure("cpu_ms_1", "CPU ms/request\n1 client", 3),
    Figure("cpu_ms_16", "16", 3),
    Figure("cpu_ms_64", "64", 3),
    Figure("requests_s", "requests/s\n64", 0),
    Figure("added_p50_ms", "added p50\n1, ms", 3),
    Figure("added_p99_ms", "p99", 3),
    Figure("chunks_s_1", "chunks/s\n1 stream", 0),
    Figure("chunks_s_16", "16", 0),
    Figure("cpu_us_chunk", "CPU µs/chunk\n16", 1),
    Figure("added_first_byte_ms", "first byte\nadded, ms", 3),
    Figure("rss_mb", "RSS\nMB", 0),
    Figure("start_s", "start\ns", 2),
)

Loads = dict[Scene, Load]


def run_load(running: Running, scene: Scene, warmup_s: float, seconds: float) -> Load:
    """Put a gateway under a load, from a process of its own."""
    command = [sys.executable, "-m", "benchmarks.overhead.load", "--port", str(running.port), "--pid", str(running.pid)]
    command += ["--clients", str(scene.clients), "--warmup", str(warmup_s), "--seconds", str(seconds)]
    command += ["--stream"] if scene.stream else []
    command += ["--unique"] if scene.unique else []
    limit_s = warmup_s + seconds + 30
    finished = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, timeout=limit_s)
    return Load(**json.loads(finished.stdout))


def figures(loads: Loads, direct: Loads) -> dict[str, float]:
    """One round's figures, without those for which no request was finished. The CPU time is the gateway's alone."""
    one, many, stream, streams = loads[Scene(1)], loads[Scene(64)], loads[Scene(1, True)], loads[Scene(16, True)]
    found = {
        "cpu_ms_1": _cpu_ms(one),
        "cpu_ms_16": _cpu_ms(loads[Scene(16)]),
        "cpu_ms_64": _cpu_ms(many),
        "requests_s": many.requests / many.seconds,
        "added_p50_ms": one.p50_ms - direct[Scene(1)].p50_ms,
        "added_p99_ms": one.p99_ms - direct[Scene(1)].p99_ms,
        "chunks_s_1": CHUNKS * stream.requests / stream.seconds,
        "chunks_s_16": CHUNKS * streams.requests / streams.seconds,
        "cpu_us_chunk": 1e3 * _cpu_ms(streams) / CHUNKS,
        "added_first_byte_ms": stream.first_byte_ms - direct[Scene(1, True)].first_byte_ms,
    }
    return {key: value for key, value in found.items() if math.isfinite(value)}


def _cpu_ms(load: Load) -> float:
    return 1e3 * load.gateway_cpu_s / load.requests if load.requests else math.nan


@dataclass(slots=True)
class Row:
    """A gateway's figures, round by round; its memory and start are known at the end."""

    name: str
    rounds: list[dict[str, float]] = field(default_factory=list)
    fixed: dict[str, float] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def values(self) -> dict[str, float]:
        """The median of each figure."""
        return _medians(self.rounds) | self.fixed

    def ratios(self, other: Row) -> dict[str, float]:
        """Each figure as a multiple of another gateway's: the median of the rounds' ratios, since machines drift."""
        rounds = [_divided(mine, theirs) for mine, theirs in zip(self.rounds, other.rounds, strict=True)]
        return _medians(rounds) | _divided(self.fixed, other.fixed)


def _divided(mine: dict[str, float], theirs: dict[str, float]) -> dict[str, float]:
    return {key: value / theirs[key] for key, value in mine.items() if theirs.get(key, 0) > 0}


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    keys = {key for each in rounds for key in each}
    return {key: statistics.median([each[key] for each in rounds if key in each]) for key in sorted(keys)}
