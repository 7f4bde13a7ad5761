"""How fast a phase goes on beside neighbours of whom only the mean numbers are known.

Neighbours read for a while and write for the rest. A mean of 0.2 that prefill is one of them for a fifth of the time,
and while it does, it does not decode. So there are up to three situations: somebody prefills; nobody does, and some
decode; nobody is there. The phase's speed is the mean of its speeds in them, by their shares of the time. (A prefill
stops the decodes beside it nearly, which counts by the time that it takes, not by how near to nothing they come.)
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from typing import NamedTuple

Excess = Sequence[float]
"""By kind of neighbour, in the order of ``contention.KINDS``."""


class Situation(NamedTuple):
    """Who is active, by kind, for a share of the time."""

    share: float
    active: tuple[float, float, float, float]


NOBODY_ACTIVE = (0.0, 0.0, 0.0, 0.0)


def situations(means: Sequence[float]) -> list[Situation]:
    """Return the situations that make up the time, from the mean numbers of neighbours by kind."""
    same_decoding, same_prefilling, other_decoding, other_prefilling = means
    decoding, prefilling = same_decoding + other_decoding, same_prefilling + other_prefilling
    found = []
    left, quiet = decoding, 1.0
    same = same_decoding / decoding if decoding > 0.0 else 0.0
    if prefilling > 0.0:
        share = min(1.0, prefilling)
        beside = max(0.0, decoding + prefilling - max(1.0, prefilling))
        found.append(
            Situation(
                share,
                (same * beside, same_prefilling / share, (1.0 - same) * beside, other_prefilling / share),
            )
        )
        left, quiet = max(0.0, decoding - share * beside), 1.0 - share
    if quiet > 0.0:
        mean = left / quiet
        share = min(1.0, mean)
        if share > 0.0:
            count = mean / share
            found.append(Situation(quiet * share, (same * count, 0.0, (1.0 - same) * count, 0.0)))
        if share < 1.0:
            found.append(Situation(quiet * (1.0 - share), NOBODY_ACTIVE))
    return found


def speed(beside: Sequence[Situation], excess: Excess) -> float:
    """Return the phase's speed, 1 when it is alone."""
    return float(sum(share / (1.0 + sum(map(mul, active, excess))) for share, active in beside))


def sensitivity(beside: Sequence[Situation], excess: Excess) -> list[float]:
    """Return by what part the phase takes longer for each part that (1 + excess) of a kind grows."""
    total = 0.0
    parts = [0.0] * len(excess)
    for share, active in beside:
        slowed = 1.0 + sum(map(mul, active, excess))
        total += share / slowed
        for kind, count in enumerate(active):
            parts[kind] += share * count * (1.0 + excess[kind]) / (slowed * slowed)
    return [part / total for part in parts]
