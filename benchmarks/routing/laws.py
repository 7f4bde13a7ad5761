"""How fast the simulated engines are: the truth, which no policy but the oracle gets to see."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class SpeedLaw:
    """One engine alone on its hardware, by its own way of batching.

    ``read`` are points (prompt tokens, seconds to the first token) of prompts of which no cache holds a part, ``write``
    points (tokens of context, seconds per token). Each other answer in the batch lengthens a token by ``batch`` of
    itself. Prompts are read one after another; meanwhile the answers in the same engine take ``stall`` times as long:
    an engine that mixes one prompt batch with one token for each answer stalls them, one that reads in small chunks
    slows them.
    """

    read: Points
    write: Points
    batch: float
    stall: float

    def read_s(self, tokens: float, held: float) -> float:
        """Return the seconds to read so many tokens after those that a cache holds, alone: as long as they take at the
        end of a prompt that nobody has read, or by themselves, whichever is longer."""
        overhead, before, whole = (interpolate(self.read, n) for n in (0.0, held, held + tokens))
        return max(0.001, interpolate(self.read, tokens), overhead + whole - before)

    def write_s(self, prompt: int, output: int) -> float:
        """Return the seconds to write an answer after its first token, alone: the context grows with it."""
        return (output - 1) * max(0.0005, interpolate(self.write, prompt + output / 2)) if output > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Sharing:
    """Engines on the same hardware: how many times longer one takes beside another one that reads, or that writes."""

    read_beside_reading: float
    read_beside_writing: float
    write_beside_reading: float
    write_beside_writing: float


QUIET_CORES = Sharing(2.1, 2.0, 2.6, 2.1)
"""Two llama.cpp on two cores whose waiting threads stop spinning early, measured."""
TIME_SLICED = Sharing(2.0, 2.0, 2.0, 2.0)
"""Two engines on one GPU take turns."""


def interpolate(points: Points, x: float) -> float:
    """Return the value on the line through the points, extended at both ends."""
    i = min(max(bisect_right(points, (x, float("inf"))), 1), len(points) - 1)
    (a, start), (b, end) = points[i - 1], points[i]
    return start + (end - start) * (x - a) / (b - a)


def speeds(read_per_s: Points, write_per_s: Points, *, overhead_s: float) -> tuple[Points, Points]:
    """Turn tokens per second at some lengths into the points of a law; a request costs ``overhead_s`` by itself."""
    read = ((0.0, overhead_s), *((n, overhead_s + n / speed) for n, speed in read_per_s))
    return read, tuple((n, 1.0 / speed) for n, speed in write_per_s)
