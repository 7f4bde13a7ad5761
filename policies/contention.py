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
from typing import Any, NamedTuple

from policies.types import Hardware, PairSample

KINDS = ("same_decoding", "same_prefilling", "other_decoding", "other_prefilling")
"""Kinds of neighbours, named as in ``Observation.neighbours``; all excess values stand in this order."""

CPU_START = ((0.0, 0.78, 2.93, 2.11), (0.30, 23.0, 3.80, 5.86))
"""Excess of prefill and of decode beside one neighbour of each kind, on shared cores. Measured with llama.cpp on 2
cores (prompt 300, 48 out): alone TTFT 1.35 s and 48 tok/s; another engine decoding 5.3 s and 10, prefilling 4.2 s and
7; in the same engine decoding 1.3 s and 37, prefilling 2.4 s and 2."""
GPU_START = ((0.30, 0.80, 1.0, 1.0), (0.15, 4.0, 1.0, 1.0))
"""The same where an accelerator is shared: engines take turns (fair halves), a batch shares each step. A guess, until a
pair is measured."""

_MOST_EXCESS = 60.0
_RATE = 0.2
_OUTLIER = 0.5
"""Relative errors count up to this size."""
_LEAST_SHARE = 0.25
"""Share of a phase that must have had neighbours for it to teach anything about them."""


class Beside(NamedTuple):
    """What other deployments on the same hardware do: requests by activity, and the seconds of work that they owe,
    each at its own engine's speed alone."""

    decoding: float = 0.0
    prefilling: float = 0.0
    decode_s: float = 0.0
    prefill_s: float = 0.0


NOBODY = Beside()


class Around(NamedTuple):
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
        """Return how much longer a phase (``"prefill"``, ``"decode"``) takes beside mean numbers of neighbours.

        A mean below one is taken as one neighbour for that share of the time: progress then has two speeds.
        """
        share, excess = self._while_active(phase, neighbours)
        return 1.0 / ((1.0 - share) + share / (1.0 + excess))

    def learn(self, phase: str, neighbours: Mapping[str, float], actual_factor: float) -> None:
        """Correct a phase's excess by what a request showed: normalised least mean squares, outliers clipped.

        Requests that were alone for most of the time say too little.
        """
        share, expected = self._while_active(phase, neighbours)
        if share < _LEAST_SHARE or actual_factor <= 0.0:
            return
        speed = 1.0 / actual_factor - (1.0 - share)
        shown = share / speed - 1.0 if speed > 0.0 else _MOST_EXCESS
        error = max(-_OUTLIER, min(_OUTLIER, (shown - expected) / (1.0 + expected))) * (1.0 + expected)
        beside = [neighbours.get(kind, 0.0) / share for kind in KINDS]
        power = sum(n * n for n in beside)
        excess = self._prefill if phase == "prefill" else self._decode
        for i, n in enumerate(beside):
            excess[i] = _limit(excess[i] + _RATE * share * error * n / power)
        self._caps = _caps(self._prefill, self._decode)

    def _while_active(self, phase: str, neighbours: Mapping[str, float]) -> tuple[float, float]:
        """Return the share of the time with neighbours, and the excess during that time."""
        excess = self._prefill if phase == "prefill" else self._decode
        share = min(1.0, sum(neighbours.get(kind, 0.0) for kind in KINDS))
        if share <= 0.0:
            return 0.0, 0.0
        return share, sum(excess[i] * neighbours.get(kind, 0.0) for i, kind in enumerate(KINDS)) / share

    def effects(self, around: Around, queue_s: float, prefill_s: float, decode_s: float) -> tuple[float, float, float]:
        """Return the seconds that a request loses to its neighbours until its first token, those that it loses in all,
        and those that its neighbours lose to it, together.

        ``queue_s`` of work ahead in the same engine is slowed by other engines as decoding is. What is lost to one kind
        of neighbour in both phases is bounded by its work once. Neighbours in other engines are taken to be slowed as
        this one would be in their place.
        """
        decoding, decoding_later, prefilling, owed_decode_s, owed_prefill_s, beside = around
        p, d = self._prefill, self._decode
        in_prefill, in_decode, in_both = self._caps
        first = total = cost = 0.0
        if decoding_later:
            first = _least(decoding * prefill_s * p[0], owed_decode_s * in_prefill[0])
            later = _least(decoding_later * decode_s * d[0], owed_decode_s * in_decode[0])
            total = _least(first + later, owed_decode_s * in_both[0])
            cost = _least(owed_decode_s * d[1], decoding * prefill_s * in_decode[1])
            cost += _least(owed_decode_s * d[0], decoding * decode_s * in_decode[0])
        if prefilling:
            before = _least(prefilling * prefill_s * p[1], owed_prefill_s * in_prefill[1])
            later = _least(prefilling * decode_s * d[1], owed_prefill_s * in_decode[1])
            first += before
            total += _least(before + later, owed_prefill_s * in_both[1])
            cost += _least(owed_prefill_s * p[1], prefilling * prefill_s * in_prefill[1])
            cost += _least(owed_prefill_s * p[0], prefilling * decode_s * in_prefill[0])
        if beside is NOBODY:
            return first, total, cost
        decoding, prefilling, owed_decode_s, owed_prefill_s = beside
        if decoding:
            most = owed_decode_s * in_both[2]
            before = decoding * (queue_s * d[2] + prefill_s * p[2])
            before = _least(before, most if queue_s else owed_decode_s * in_prefill[2])
            first += before
            total += _least(before + _least(decoding * decode_s * d[2], owed_decode_s * in_decode[2]), most)
            cost += _least(owed_decode_s * d[3], decoding * prefill_s * in_decode[3])
            cost += _least(owed_decode_s * d[2], decoding * decode_s * in_decode[2])
        if prefilling:
            most = owed_prefill_s * in_both[3]
            before = prefilling * (queue_s * d[3] + prefill_s * p[3])
            before = _least(before, most if queue_s else owed_prefill_s * in_prefill[3])
            first += before
            total += _least(before + _least(prefilling * decode_s * d[3], owed_prefill_s * in_decode[3]), most)
            cost += _least(owed_prefill_s * p[3], prefilling * prefill_s * in_prefill[3])
            cost += _least(owed_prefill_s * p[2], prefilling * decode_s * in_prefill[2])
        return first, total, cost

    def batch_factor(self, others: float) -> float:
        """Return how many times longer decoding takes with so many others in the same batch."""
        return 1.0 + others * self._decode[0]

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


def _least(a: float, b: float) -> float:
    """``min`` for two floats, at a third of its price: a decision takes it a dozen times per deployment."""
    return a if a < b else b


def _limit(excess: float) -> float:
    return max(0.0, min(_MOST_EXCESS, excess))


def _caps(prefill: list[float], decode: list[float]) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """Return c, the seconds lost per second of a neighbour's work: in prefill, in decode, and the greater of both."""
    slowed_by_prefill = (decode[1], prefill[1], decode[3], prefill[3])
    slowed_by_decode = (decode[0], prefill[0], decode[2], prefill[2])
    in_prefill = tuple(e * (1.0 + f) / (1.0 + e) for e, f in zip(prefill, slowed_by_prefill, strict=True))
    in_decode = tuple(e * (1.0 + f) / (1.0 + e) for e, f in zip(decode, slowed_by_decode, strict=True))
    return in_prefill, in_decode, tuple(map(max, in_prefill, in_decode))
