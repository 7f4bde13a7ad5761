"""``python -m benchmarks.engine``: the built-in engine beside llama.cpp and vLLM on this machine's CPU, over HTTP.

Each engine is a process of its own; all stay up, and take turns in every round, so that what the machine does meanwhile
meets them all. Prompts are new each time. A figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from adapters.errors import EngineError
from adapters.launch import LaunchError
from benchmarks.engine.subjects import TOGETHER, Subject, running, specs
from policies.types import Precision
from scripts.lib.ending import end_when_terminated
from scripts.lib.local_engines import NotMade

PROMPT_TOKENS = 256
SHORT_TOKENS = 32
OUTPUT_TOKENS = 64
PAUSE_S = 0.2
LIMIT_S = 300.0
MEASURED = ("prefill", "decode, 1", f"decode, {TOGETHER} together")
"""Reading a prompt; writing for one; all that several write at once, by the time until the last of them has ended."""

console = Console(stderr=True, highlight=False)


@dataclass(slots=True)
class Figures:
    """One engine's speeds in tokens/s, by what was measured, a value a round; and what it took to have it.

    ``start_s`` is from the process's start until it was ready, ``bytes`` the most memory that it had.
    """

    precision: Precision
    engine: str
    start_s: float
    bytes: int | None = None
    rounds: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in MEASURED})

    def median(self, name: str) -> float:
        """Return the median of one of ``MEASURED``."""
        return statistics.median(self.rounds[name])


def main() -> int:
    """Run with the command line's arguments. Returns the exit status: 1 when something failed."""
    end_when_terminated()
    args = _arguments()
    with tempfile.TemporaryDirectory(prefix="paceline-engine-") as folder:
        try:
            figures = asyncio.run(_measure(args, Path(folder)))
        except (NotMade, LaunchError, EngineError) as error:
            console.print(f"error: {error}", style="red", markup=False)
            return 1
    if args.json:
        print(json.dumps({name: _as_json(each) for name, each in figures.items()}, indent=2))
    else:
        _print(figures)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured (default %(default)s)")
    parser.add_argument(
        "--precisions",
        type=lambda text: [Precision(name) for name in text.split(",")],
        default="fp32,bf16,int8,int4",
        help="of the built-in engine; llama.cpp runs beside it where it has the class (default %(default)s)",
    )
    parser.add_argument("--no-vllm", action="store_true", help="leave vLLM out, where it has been made")
    parser.add_argument("--json", action="store_true", help="print every round as JSON instead of the table")
    return parser.parse_args()


async def _measure(args: argparse.Namespace, folder: Path) -> dict[str, Figures]:
    figures: dict[str, Figures] = {}
    async with AsyncExitStack() as stack:
        subjects = []
        for spec in specs(folder, args.precisions, with_vllm=not args.no_vllm):
            console.print(f"starting {spec.name}")
            subject = await stack.enter_async_context(running(spec))
            await _round(subject)  # what the first requests set up counts for none
            subjects.append(subject)
            deployment = subject.probe.deployment
            figures[subject.name] = Figures(deployment.precision, deployment.engine, subject.start_s)
        for number in range(args.rounds):
            for subject in subjects:
                for name, speed in zip(MEASURED, await _round(subject), strict=True):
                    figures[subject.name].rounds[name].append(speed)
                await asyncio.sleep(max(PAUSE_S, subject.lingers_s))
            console.print(f"round {number + 1} of {args.rounds}")
        for subject in subjects:
            figures[subject.name].bytes = subject.memory_bytes()
    return figures


async def _round(subject: Subject) -> tuple[float, float, float]:
    """The speeds in the order of ``MEASURED``."""
    probe, clock = subject.probe, asyncio.get_running_loop().time
    one = await probe.run(PROMPT_TOKENS, OUTPUT_TOKENS, limit_s=LIMIT_S)
    probe.calibrate(one)
    begun = clock()
    several = (probe.run(SHORT_TOKENS, OUTPUT_TOKENS, limit_s=LIMIT_S) for _ in range(TOGETHER))
    written = sum(run.output_tokens for run in await asyncio.gather(*several))
    return one.uncached_tokens / one.ttft_s, (one.output_tokens - 1) / one.decode_s, written / (clock() - begun)


def _print(figures: dict[str, Figures]) -> None:
    title = "Tokens/s, medians; in brackets: × llama.cpp with as many bits, or the most below"
    table = Table(title=title, title_justify="left")
    table.add_column("engine", no_wrap=True)
    for name in (*MEASURED, "ready after", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    for engine, each in figures.items():
        memory = "" if each.bytes is None else f"{each.bytes / 1e6:.0f} MB"
        speeds = (_cell(each, name, figures) for name in MEASURED)
        table.add_row(engine, *speeds, f"{each.start_s:.1f} s", memory)
    wide = Console(width=max(Console().width, 120), highlight=False)
    wide.print(table)
    wide.print(
        f"Prefill: about {PROMPT_TOKENS} tokens of a prompt until the first of the answer. Decode: {OUTPUT_TOKENS} "
        f"in all; together: with prompts of about {SHORT_TOKENS}, their reading included."
    )


def _cell(each: Figures, name: str, figures: dict[str, Figures]) -> str:
    speed = each.median(name)
    rivals = [
        other
        for other in figures.values()
        if other.engine == "llamacpp" and other.precision.bits <= each.precision.bits
    ]
    if each.engine == "llamacpp" or not rivals:
        return f"{speed:.0f}"
    rival = max(rivals, key=lambda other: other.precision.bits)
    return f"{speed:.0f} ({speed / rival.median(name):.2f} ×)"


def _as_json(each: Figures) -> dict[str, object]:
    return {"precision": each.precision, "start_s": each.start_s, "bytes": each.bytes, **each.rounds}


if __name__ == "__main__":
    sys.exit(main())
