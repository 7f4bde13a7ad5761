"""``python -m benchmarks.cache``: hits and misses, in memory and in a real Valkey, beside no cache and LiteLLM's.

Every gateway stands in front of the same upstream, which answers at once: what is added is its own. The Valkey listens
on TCP, for both gateways alike.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.overhead.figures import Scene, run_load
from benchmarks.overhead.load import Load
from benchmarks.overhead.processes import Running, StartError, free_port, gateway, upstreams
from benchmarks.overhead.targets import LITELLM, Site, Target, litellm_arguments, paceline_arguments
from cache.embedded import find_server
from cache.key import make_key
from scripts.lib.ending import end_when_terminated

ONE: Final = Scene(1)
MANY: Final = Scene(64)
NEW_ONE: Final = Scene(1, unique=True)
NEW_MANY: Final = Scene(64, unique=True)
STREAM: Final = Scene(1, stream=True)
PROMPT_BYTES: Final = 100_000


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table: a gateway, and whether its requests are new or known."""

    title: str
    gateway: str
    one: Scene
    many: Scene


CASES: Final = (
    Case("Paceline, no cache", "off", ONE, MANY),
    Case("Paceline, new prompts, memory", "memory", NEW_ONE, NEW_MANY),
    Case("Paceline, new prompts, memory and Valkey", "valkey", NEW_ONE, NEW_MANY),
    Case("Paceline, known prompts, memory", "memory", ONE, MANY),
    Case("Paceline, known prompts, streamed, memory", "memory", STREAM, Scene(64, stream=True)),
    Case("Paceline, known prompts, Valkey alone", "valkey", ONE, MANY),
    Case("LiteLLM, new prompts, Valkey", "litellm", NEW_ONE, NEW_MANY),
    Case("LiteLLM, known prompts, Valkey", "litellm", ONE, MANY),
)


def main() -> int:
    """Run with the command line's arguments. Returns the exit status: 1 when a request failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cache", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of the table")
    parser.add_argument("--rounds", type=int, default=3, help="the median counts (default 3)")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each load (default 2)")
    parser.add_argument("--without", metavar="NAMES", default="", help="gateways to leave out, such as litellm")
    args = parser.parse_args()
    end_when_terminated()
    console = Console(stderr=True)
    key_ms = _key_ms()  # before there is anything else to do
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-cache-")))
        ports = stack.enter_context(upstreams(8))
        port = stack.enter_context(_valkey(folder))
        running = {}
        for target in _targets(port):
            program = target.find() if target.name not in args.without.split(",") else None
            if program is None:
                console.print(f"{target.name}: left out")
                continue
            try:
                running[target.name] = stack.enter_context(gateway(target, program, ports, folder / target.name))
            except StartError as error:
                console.print(f"{error}; left out", markup=False)
        direct = Running("direct", ports[0])
        loads = _measure(running, direct, args.rounds, args.seconds)
    figures = {title: _figures(each, loads["direct"]) for title, each in loads.items() if title != "direct"}
    report = {"key_of_100_kb_ms": key_ms, "figures": figures}
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)
    errors = [load.first_error for each in loads.values() for pair in each for load in pair if load.errors]
    for error in errors:
        console.print(error, style="red", markup=False)
    return 1 if errors else 0


def _targets(valkey_port: int) -> list[Target]:
    url = f"redis://127.0.0.1:{valkey_port}"
    redis = {"type": "redis", "host": "127.0.0.1", "port": valkey_port, "namespace": "litellm"}
    settings = {"cache": True, "cache_params": redis}

    def paceline(name: str, cache: dict[str, object]) -> Target:
        return Target(name, "paceline", lambda site: paceline_arguments(site, cache))

    def litellm(site: Site) -> list[str]:
        return litellm_arguments(site, settings)

    return [
        paceline("off", {"mode": "off"}),
        paceline("memory", {"mode": "auto"}),
        paceline("valkey", {"url": url, "memory": 0}),
        Target("litellm", "litellm", litellm, LITELLM.environment),
    ]


@contextlib.contextmanager
def _valkey(folder: Path) -> Iterator[int]:
    port = free_port()
    command = [find_server(), "--port", str(port), "--save", "", "--dir", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            yield port
        finally:
            process.terminate()


Pair = tuple[Load, Load]


def _measure(running: dict[str, Running], direct: Running, rounds: int, seconds: float) -> dict[str, list[Pair]]:
    """All cases take turns, so that a machine that slows down slows all of them."""
    seen: dict[str, list[Pair]] = {"direct": []}
    for _ in range(rounds):
        seen["direct"].append((run_load(direct, ONE, 0.3, seconds), run_load(direct, STREAM, 0.3, seconds)))
        for case in CASES:
            if case.gateway in running:
                one, many = (run_load(running[case.gateway], scene, 0.5, seconds) for scene in (case.one, case.many))
                seen.setdefault(case.title, []).append((one, many))
    return seen


def _figures(loads: list[Pair], direct: list[Pair]) -> dict[str, float]:
    """Medians over the rounds. The time is the whole round trip: a hit saves the upstream's part of it."""
    return {
        "p50_ms": statistics.median(one.p50_ms for one, _ in loads),
        "upstream_p50_ms": statistics.median(one.p50_ms for one, _ in direct),
        "cpu_ms_1": statistics.median(1e3 * one.gateway_cpu_s / max(1, one.requests) for one, _ in loads),
        "cpu_ms_64": statistics.median(1e3 * many.gateway_cpu_s / max(1, many.requests) for _, many in loads),
        "requests_s": statistics.median(many.requests / many.seconds for _, many in loads),
    }


def _key_ms() -> float:
    """The key of a prompt of 100 kB, in ms: the median of 200."""
    text = 'The quick brown fox "jumps" over the lazy dog.\n' * (PROMPT_BYTES // 47)
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 100}
    fields = msgspec.json.decode(msgspec.json.encode(body), type=dict[str, msgspec.Raw])
    times = []
    for _ in range(200):
        start = time.perf_counter()
        make_key("chat", "m", "key:", fields)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def _print(report: dict[str, object]) -> None:
    table = Table(title="The cache, in front of an upstream that answers at once")
    columns = ("p50 ms, 1 client", "CPU ms/request, 1", "64", "requests/s, 64")
    for column in ("", *columns):
        table.add_column(column, justify="right" if column else "left")
    figures = report["figures"]
    assert isinstance(figures, dict)
    for title, each in figures.items():
        values = (f"{each['p50_ms']:.3f}", f"{each['cpu_ms_1']:.3f}", f"{each['cpu_ms_64']:.3f}")
        table.add_row(title, *values, f"{each['requests_s']:,.0f}")
    console = Console(width=max(Console().width, 110))
    console.print(table)
    upstream = next(iter(figures.values()))["upstream_p50_ms"]
    console.print(f"The upstream itself answers in {upstream:.3f} ms. ", end="")
    console.print(f"The key of a prompt of 100 kB takes {report['key_of_100_kb_ms']:.3f} ms.")


if __name__ == "__main__":
    sys.exit(main())
