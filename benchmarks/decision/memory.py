"""How much memory everything that serving teaches takes at its bounds."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass

from policies.predict import Predictor
from policies.prefix import PrefixMemory
from policies.tokens import OutputLength, TokenRatio
from policies.turns import Turns
from policies.types import Observation, SpeedSample


@dataclass(frozen=True, slots=True)
class Store:
    """One kind of learned state: its bound in words, and the bytes that it takes there."""

    name: str
    bound: str
    bytes_: int


def stores() -> list[Store]:
    """Fill each store past its bound and weigh it. Takes some seconds."""
    return [
        Store("speeds, contention, intervals", "1,024 fingerprints", _weigh(_predictor)),
        Store("prefix blocks", "8,192 per deployment that runs", _weigh(_prefixes)),
        Store("answer lengths", "4,096 callers", _weigh(_outputs)),
        Store("turns that follow", "4,096 callers", _weigh(_turns)),
        Store("bytes per token", "512 models", _weigh(_ratios)),
    ]


def _weigh(fill: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = fill()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    del kept
    return after - before


def _predictor() -> Predictor:
    predictor = Predictor()
    beside = {"other_decoding": 0.4}
    for i in range(1100):
        name = f"fingerprint{i}"
        predictor.measured(name, [SpeedSample(n, 32, n / 200.0, 0.02) for n in (16, 64, 256, 1024)])
        for seen in range(250):
            prompt = 16 + 20 * seen
            seconds = prompt / 150.0
            neighbours = beside if seen % 2 else {}
            predictor.observe(
                Observation("d", name, prompt, 40, seconds, seconds + 1.0, cached_tokens=0, neighbours=neighbours),
                float(seen),
            )
    return predictor


def _prefixes() -> PrefixMemory:
    prefixes = PrefixMemory()
    for start in range(0, 10_000, 100):
        prefixes.remember("deployment", [hash((start, i)) for i in range(100)], 128, 1 << 30)
    return prefixes


def _outputs() -> OutputLength:
    lengths = OutputLength()
    for i in range(4200):
        lengths.learn("model", f"caller{i}", 100 + i)
    return lengths


def _turns() -> Turns:
    turns = Turns()
    for i in range(4200):
        turns.learn("model", f"caller{i}", continues=True)
    return turns


def _ratios() -> TokenRatio:
    ratio = TokenRatio()
    for i in range(600):
        ratio.learn(f"model{i}", 4000, 1000 + i)
    return ratio
