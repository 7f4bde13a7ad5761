"""How requests that run side by side slow each other, and what that adds up to.

The model: a phase that takes ``A`` seconds alone is slowed to ``A × (1 + n × e)`` while ``n`` neighbours of one kind
are active; ``e`` is the *excess* of that phase beside that kind. A neighbour is active only until its own work is done,
and it is slowed in turn, by its own excess ``f``. With ``w`` seconds of work (alone) it is done after ``w × (1 + f)``;
meanwhile the phase loses ``w × (1 + f) × e / (1 + e)``. So the phase loses

    min(n × A × e, W × c)   with   c = e × (1 + f) / (1 + e)   and   W the neighbours' work together.

For ``e = f`` that is ``min(n × A, W) × e``, which for ``e = 1`` is processor sharing, exactly. It costs the same at any
number of neighbours, and it never falls when neighbours or work are added, which routing relies on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from policies.types import Hardware, PairSample

SAME_DECODING, SAME_PREFILLING, OTHER_DECODING, OTHER_PREFILLING = range(4)
KINDS = ("same_decoding", "same_prefilling", "other_decoding", "other_prefilling")
"""Kinds of neighbours, named as in ``Observation.neighbours``."""

CPU_START = ((0.0, 0.78, 2.93, 2.11), (0.30, 23.0, 3.80, 5.86))
"""Excess of prefill and of decode beside one neighbour of each kind, on shared cores. Measured with llama.cpp on 2
cores (prompt 300, 48 out): alone TTFT 1.35 s and 48 tok/s; another engine decoding 5.3 s and 10, prefilling 4.2 s and
7; in the same engine decoding 1.3 s and 37, prefilling 2.4 s and 2."""
GPU_START = ((0.30, 0.80, 1.0, 1.0), (0.15, 4.0, 1.0, 1.0))
"""The same where an accelerator is shared: engines take turns (fair halves), a batch shares each step. A guess, until a
pair is measured."""

_MOST_EXCESS = 60.0
_RATE = 0.2
_OUTLIER = 1.0


class Beside(NamedTuple):
    """What other deployments on the same hardware do: requests by activity, and the seconds of work that they owe,
    each at its own engine's speed alone."""

    decoding: float = 0.0
    prefilling: float = 0.0
    decode_s: float = 0.0
    prefill_s: float = 0.0


NOBODY = Beside()


@dataclass(frozen=True, slots=True)
class Around:
    """All neighbours that a request would have, and the work in seconds that they owe.

    ``decoding_later`` counts all of the same engine's requests: those that prefill now will decode.
    """

    decoding: float
    decoding_later: float
    prefilling: float
    decode_s: float
    prefill_s: float
    beside: Beside


class Contention:
    """Excess factors of one fingerprint, beginning with stated ones, then measured in pairs, then learned."""

    __slots__ = ("_caps", "_decode", "_prefill")

    def __init__(self, start: tuple[tuple[float, ...], tuple[float, ...]] = CPU_START) -> None:
        self._prefill = list(start[0])
        self._decode = list(start[1])
        self._caps = _caps(self._prefill, self._decode)

    @classmethod
    def measured(cls, pairs: Iterable[PairSample], start: tuple[tuple[float, ...], tuple[float, ...]]) -> Contention:
        """Take the excess from pairs where they were measured, from ``start`` where not.

        Several samples of one kind count by their mean. Raises ``ValueError`` for a kind that there is not.
        """
        seen: dict[int, list[PairSample]] = {}
        for pair in pairs:
            seen.setdefault(KINDS.index(f"{pair.neighbour}_{pair.activity}"), []).append(pair)
        contention = cls(start)
        for kind, samples in seen.items():
            contention._prefill[kind] = _limit(sum(s.prefill_factor for s in samples) / len(samples) - 1.0)
            contention._decode[kind] = _limit(sum(s.decode_factor for s in samples) / len(samples) - 1.0)
        contention._caps = _caps(contention._prefill, contention._decode)
        return contention

    def factor(self, phase: str, neighbours: Mapping[str, float]) -> float:
        """Return how much longer a phase (``"prefill"``, ``"decode"``) takes beside mean numbers of neighbours."""
        excess = self._prefill if phase == "prefill" else self._decode
        return 1.0 + sum(excess[i] * neighbours.get(kind, 0.0) for i, kind in enumerate(KINDS))

    def learn(self, phase: str, neighbours: Mapping[str, float], actual_factor: float) -> None:
        """Correct a phase's excess by what a request showed: normalised least mean squares, outliers clipped."""
        excess = self._prefill if phase == "prefill" else self._decode
        beside = [neighbours.get(kind, 0.0) for kind in KINDS]
        power = sum(n * n for n in beside)
        if power <= 0.0:
            return
        expected = self.factor(phase, neighbours)
        error = max(-_OUTLIER, min(_OUTLIER, actual_factor / expected - 1.0)) * expected
        for i, n in enumerate(beside):
            excess[i] = _limit(excess[i] + _RATE * error * n / max(power, 0.25))
        self._caps = _caps(self._prefill, self._decode)

    def lost(self, around: Around, queue_s: float, prefill_s: float, decode_s: float) -> tuple[float, float]:
        """Return the seconds that a request loses to its neighbours: until its first token, and in all.

        ``queue_s`` of work ahead in the same engine is slowed by other engines as decoding is.
        """
        p, d, caps = self._prefill, self._decode, self._caps
        n, work = around.decoding, around.decode_s
        first = min(n * prefill_s * p[0], work * caps[0][0])
        total = min(first + min(around.decoding_later * decode_s * d[0], work * caps[1][0]), work * caps[2][0])
        n, work = around.prefilling, around.prefill_s
        if n:
            before = min(n * prefill_s * p[1], work * caps[0][1])
            first += before
            total += min(before + min(n * decode_s * d[1], work * caps[1][1]), work * caps[2][1])
        beside = around.beside
        if beside is not NOBODY:
            for n, work, kind in (
                (beside.decoding, beside.decode_s, OTHER_DECODING),
                (beside.prefilling, beside.prefill_s, OTHER_PREFILLING),
            ):
                until_first = n * (queue_s * d[kind] + prefill_s * p[kind])
                first += min(until_first, work * caps[2][kind])
                total += min(until_first + n * decode_s * d[kind], work * caps[2][kind])
        return first, total

    def cost_to_others(self, around: Around, prefill_s: float, decode_s: float) -> float:
        """Return the seconds that the requests around lose together, by the same law seen from their side.

        Neighbours of other engines are taken to be slowed as this one would be in their place.
        """
        p, d, caps = self._prefill, self._decode, self._caps
        beside = around.beside
        cost = 0.0
        for n, work, slowed, by_prefill, by_decode in (
            (around.decoding, around.decode_s, 1, SAME_PREFILLING, SAME_DECODING),
            (around.prefilling, around.prefill_s, 0, SAME_PREFILLING, SAME_DECODING),
            (beside.decoding, beside.decode_s, 1, OTHER_PREFILLING, OTHER_DECODING),
            (beside.prefilling, beside.prefill_s, 0, OTHER_PREFILLING, OTHER_DECODING),
        ):
            if n:
                excess, cap = (d if slowed else p), caps[slowed]
                cost += min(work * excess[by_prefill], n * prefill_s * cap[by_prefill])
                cost += min(work * excess[by_decode], n * decode_s * cap[by_decode])
        return cost

    def to_dict(self) -> dict[str, Any]:
        """Return plain values only."""
        return {"prefill": list(self._prefill), "decode": list(self._decode)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Contention:
        """The way back from ``to_dict``. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything else."""
        prefill, decode = ([_limit(float(value)) for value in plain[phase]] for phase in ("prefill", "decode"))
        if len(prefill) != len(KINDS) or len(decode) != len(KINDS):
            raise ValueError(f"contention needs {len(KINDS)} values per phase")
        return cls((tuple(prefill), tuple(decode)))


def starting_factors(hardware: Hardware) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the factors to begin with: of accelerators when it has one, else of cores."""
    return GPU_START if any("/gpu" in device.casefold() for device in hardware.devices) else CPU_START


def _limit(excess: float) -> float:
    return max(0.0, min(_MOST_EXCESS, excess))


def _caps(prefill: list[float], decode: list[float]) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """Return c, the seconds lost per second of a neighbour's work: in prefill, in decode, and the greater of both."""
    slowed_by_prefill = (decode[1], prefill[1], decode[3], prefill[3])
    slowed_by_decode = (decode[0], prefill[0], decode[2], prefill[2])
    in_prefill = tuple(e * (1.0 + f) / (1.0 + e) for e, f in zip(prefill, slowed_by_prefill, strict=True))
    in_decode = tuple(e * (1.0 + f) / (1.0 + e) for e, f in zip(decode, slowed_by_decode, strict=True))
    return in_prefill, in_decode, tuple(map(max, in_prefill, in_decode))
