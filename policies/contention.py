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

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from statistics import median
from typing import Any, NamedTuple

from policies.curve import Curve
from policies.progress import Situation, sensitivity, situations, speed
from policies.types import BatchSample, Hardware, PairSample, Usual

KINDS = ("same_decoding", "same_prefilling", "other_decoding", "other_prefilling")
"""Kinds of neighbours, named as in ``Observation.neighbours``; all excess values stand in this order."""
_SAME_PREFILLING = KINDS.index("same_prefilling")

CPU_START = ((0.0, 0.78, 2.93, 2.11), (0.30, 23.0, 3.80, 5.86))
"""Excess of prefill and of decode beside one neighbour of each kind, on shared cores. Measured with llama.cpp on 2
cores (prompt 300, 48 out): alone TTFT 1.35 s and 48 tok/s; another engine decoding 5.3 s and 10, prefilling 4.2 s and
7; in the same engine decoding 1.3 s and 37, prefilling 2.4 s and 2."""
GPU_START = ((0.30, 0.80, 1.0, 1.0), (0.15, 4.0, 1.0, 1.0))
"""The same where an accelerator is shared: engines take turns (fair halves), a batch shares each step. A guess, until a
pair is measured."""

JOINS = 0.8
"""Steps that a request waits for when it joins a batch that decodes: the rest of the one under way, and what the others
add to its own. Measured with vLLM, three beside: 41 ms, steps of 51 ms; with it the median error of such a TTFT was 8 %
instead of 28 %. The excess of a prefill beside decodes in its engine is what it loses beyond that."""
_MOST_EXCESS = 60.0
_RATE = 0.2
_OUTLIER = 0.5
"""Errors (of the logarithm) count up to this size."""
_LITTLE_SAID = 0.02
"""What keeps a request that hardly met a kind of neighbour from moving that kind's excess far."""
_BENT = 2.0
"""How far TPOT(batch) may be from a straight line: with less of it, noise in a small excess would pass for a shape."""
_LEAST_SHARE = 0.25
"""Share of a phase that must have had neighbours for it to teach anything about them."""


class Beside(NamedTuple):
    """Requests that run in one engine, or in all others on the same hardware: how many by activity, and the seconds of
    work that they owe, each at its own engine's speed alone."""

    decoding: float = 0.0
    prefilling: float = 0.0
    decode_s: float = 0.0
    prefill_s: float = 0.0


NOBODY = Beside()


class _Law(NamedTuple):
    """What one kind of neighbours does to a request, and the request to them.

    ``prefill`` and ``decode`` are the request's excess beside one of them, ``in_…`` the seconds that it loses at most
    per second of their work. ``to_…`` are their excess beside its prefill and its decode, ``most_to_…`` the seconds
    that they lose at most per second of it.
    """

    prefill: float
    decode: float
    in_prefill: float
    in_decode: float
    in_both: float
    to_prefill: float
    to_decode: float
    most_to_prefill: float
    most_to_decode: float


class Contention:
    """Excess factors of one fingerprint, beginning with stated ones, then measured in pairs, then learned."""

    __slots__ = ("_batch", "_decode", "_laws", "_next", "_prefill")

    def __init__(self, start: tuple[tuple[float, ...], tuple[float, ...]] = CPU_START) -> None:
        self._prefill = list(start[0])
        self._decode = list(start[1])
        self._batch: Curve | None = None
        """Decodes beside one in a batch → how many times the mean excess of one they weigh; ``None``: their number."""
        self._laws = _laws(self._prefill, self._decode)
        self._next: tuple[Usual, tuple[float, float, float]] | None = None

    @classmethod
    def measured(
        cls,
        pairs: Iterable[PairSample],
        start: tuple[tuple[float, ...], tuple[float, ...]],
        batches: Iterable[BatchSample] = (),
    ) -> Contention:
        """Take the excess from pairs where they were measured, from ``start`` where not, and the batch law from
        ``batches``, which say more about decoding in one batch than a pair.

        Several samples of one kind count by their mean. Raises ``ValueError`` for a kind that there is not.
        """
        seen: dict[int, list[PairSample]] = {}
        for pair in pairs:
            seen.setdefault(KINDS.index(f"{pair.neighbour}_{pair.activity}"), []).append(pair)
        contention = cls(start)
        for kind, samples in seen.items():
            contention._prefill[kind] = _limit(sum(s.prefill_factor for s in samples) / len(samples) - 1.0)
            contention._decode[kind] = _limit(sum(s.decode_factor for s in samples) / len(samples) - 1.0)
        contention._take_batches(tuple(batches))
        contention._laws = _laws(contention._prefill, contention._decode)
        return contention

    def _take_batches(self, batches: Sequence[BatchSample]) -> None:
        """Fit TPOT(batch) on the shortest prompts and longest answers, where reading stalls decodes least."""
        kinds = {(s.prompt_tokens, -s.output_tokens) for s in batches if s.concurrency == 1 and s.tpot_s > 0.0}
        kinds &= {(s.prompt_tokens, -s.output_tokens) for s in batches if s.concurrency > 1}
        if not kinds:
            return
        cells = [s for s in batches if (s.prompt_tokens, -s.output_tokens) == min(kinds)]
        alone_s = median(s.tpot_s for s in cells if s.concurrency == 1)
        law = Curve([(0, 0.0), *((s.concurrency - 1, max(0.0, s.tpot_s / alone_s - 1.0)) for s in cells)], is_rate=True)
        most, excess = law.knots[-1]
        self._decode[0] = _limit(excess / most)
        if excess > 0.0:
            shape = ((n, max(n / _BENT, min(n * _BENT, value * most / excess))) for n, value in law.knots)
            self._batch = Curve(shape, is_rate=True)

    def _in_batch(self, others: float) -> float:
        """How many times the excess of one decode others in the same batch weigh together."""
        return others if self._batch is None else self._batch.at(others)

    def factor(self, phase: str, neighbours: Mapping[str, float]) -> float:
        """Return how much longer a phase (``"prefill"``, ``"decode"``) takes beside mean numbers of neighbours."""
        return 1.0 / speed(self._beside(phase, neighbours), self._excess(phase))

    def learn(self, phase: str, neighbours: Mapping[str, float], actual_factor: float) -> None:
        """Correct a phase's excess by what a request showed: normalised least mean squares of the logarithm of
        (1 + excess), outliers clipped.

        Requests that were alone for most of the time say too little.
        """
        beside = self._beside(phase, neighbours)
        if sum(share for share, active in beside if any(active)) < _LEAST_SHARE or actual_factor <= 0.0:
            return
        excess = self._excess(phase)
        error = max(-_OUTLIER, min(_OUTLIER, log(actual_factor * speed(beside, excess))))
        says = sensitivity(beside, excess)
        step = _RATE * error / (_LITTLE_SAID + sum(part * part for part in says))
        for kind, part in enumerate(says):
            excess[kind] = _limit((1.0 + excess[kind]) * exp(step * part) - 1.0)
        self._laws = _laws(self._prefill, self._decode)
        self._next = None

    def _excess(self, phase: str) -> list[float]:
        return self._prefill if phase == "prefill" else self._decode

    def _beside(self, phase: str, neighbours: Mapping[str, float]) -> list[Situation]:
        """Return who is active when; decodes in the same batch by what they weigh together."""
        found = situations([neighbours.get(kind, 0.0) for kind in KINDS])
        if self._batch is None or phase == "prefill":
            return found
        return [Situation(share, (self._in_batch(active[0]), *active[1:])) for share, active in found]

    def effects(
        self,
        own: Beside,
        later: float,
        beside: Beside,
        queue_s: float,
        prefill_s: float,
        decode_s: float,
        joins_s: float = 0.0,
    ) -> tuple[float, float, float]:
        """Return the seconds that a request loses to its neighbours until its first token, those that it loses in all,
        and those that its neighbours lose to it, together.

        ``own`` are the requests in the same engine once there is a slot, ``later`` all of them: those that prefill then
        will decode. ``queue_s`` of work ahead in the same engine is slowed by other engines as decoding is. Neighbours
        in other engines are taken to be slowed as this one would be in their place. ``joins_s`` is the wait for a step
        of the batch that the request joins, as the method of that name says.
        """
        first = total = cost = 0.0
        laws = self._laws
        decoding, prefilling, owed_decode_s, owed_prefill_s = own
        if later:
            first, total, cost = _side(
                laws[0], decoding, self._in_batch(later), owed_decode_s, 0.0, prefill_s, decode_s
            )
            first, total = first + joins_s, total + joins_s
        if prefilling:
            before, lost, others = _side(laws[1], prefilling, prefilling, owed_prefill_s, 0.0, prefill_s, decode_s)
            first, total, cost = first + before, total + lost, cost + others
        if beside is not NOBODY:
            decoding, prefilling, owed_decode_s, owed_prefill_s = beside
            if decoding:
                before, lost, others = _side(laws[2], decoding, decoding, owed_decode_s, queue_s, prefill_s, decode_s)
                first, total, cost = first + before, total + lost, cost + others
            if prefilling:
                before, lost, others = _side(
                    laws[3], prefilling, prefilling, owed_prefill_s, queue_s, prefill_s, decode_s
                )
                first, total, cost = first + before, total + lost, cost + others
        return first, total, cost

    def of_the_next(self, usual: Usual) -> tuple[float, float, float]:
        """Return what usual company costs: the seconds that a request loses per second of its decode, and those that
        the company loses to it, together, per second of its prefill and of its decode.

        Those that are there already are done half way through, in the mean, and ``effects`` counts them; others like
        this request take their places. The answer is remembered until the company or the law changes.
        """
        if self._next is not None and self._next[0] is usual:
            return self._next[1]
        decoding, prefilling = 0.5 * usual.decoding, 0.5 * usual.prefilling
        later = decoding + prefilling
        writes, reads = self._laws[0], self._laws[1]
        lost = self.factor("decode", {KINDS[0]: decoding, KINDS[1]: prefilling}) - 1.0
        by_prefill = decoding * writes.most_to_prefill + prefilling * reads.most_to_prefill
        by_decode = min(decoding * writes.most_to_decode, later * writes.to_decode)
        by_decode += min(prefilling * reads.most_to_decode, later * reads.to_decode)
        rates = lost, by_prefill, by_decode
        self._next = usual, rates
        return rates

    def batch_factor(self, others: float) -> float:
        """Return how many times longer decoding takes with so many others in the same batch."""
        return 1.0 + self._in_batch(others) * self._decode[0]

    def joins_s(self, decoding: float, alone_s: float) -> float:
        """Return how long a request waits when it joins a batch of so many that decode; a step for one alone takes
        ``alone_s``."""
        return JOINS * alone_s * self.batch_factor(decoding) * (decoding if decoding < 1.0 else 1.0)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values only."""
        batch = None if self._batch is None else [list(knot) for knot in self._batch.knots]
        return {"prefill": list(self._prefill), "decode": list(self._decode), "batch": batch}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Contention:
        """The way back from ``to_dict``. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything else."""
        prefill, decode = ([_limit(float(value)) for value in plain[phase]] for phase in ("prefill", "decode"))
        if len(prefill) != len(KINDS) or len(decode) != len(KINDS):
            raise ValueError(f"contention needs {len(KINDS)} values per phase")
        contention = cls((tuple(prefill), tuple(decode)))
        if plain["batch"] is not None:
            contention._batch = Curve(((float(n), float(weight)) for n, weight in plain["batch"]), is_rate=True)
        return contention


def starting_factors(hardware: Hardware) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the factors to begin with: of accelerators when it has one, else of cores."""
    return GPU_START if hardware.has_accelerator else CPU_START


def _side(
    law: _Law, n: float, later: float, owed_s: float, queue_s: float, prefill_s: float, decode_s: float
) -> tuple[float, float, float]:
    """Return what ``effects`` does, for ``n`` neighbours of one kind that owe ``owed_s`` and weigh ``later`` on the
    decode. Comparisons instead of ``min``: this runs for each busy deployment in each decision."""
    prefill, decode, in_prefill, in_decode, in_both, to_prefill, to_decode, most_to_prefill, most_to_decode = law
    most = owed_s * in_both
    before = n * (prefill_s * prefill + queue_s * decode)
    limit = most if queue_s else owed_s * in_prefill
    if before > limit:
        before = limit
    lost = later * decode_s * decode
    limit = owed_s * in_decode
    lost = before + (lost if lost < limit else limit)
    if lost > most:
        lost = most
    cost = n * prefill_s * most_to_prefill
    limit = owed_s * to_prefill
    if cost > limit:
        cost = limit
    others = n * decode_s * most_to_decode
    limit = owed_s * to_decode
    return before, lost, cost + (others if others < limit else limit)


def _limit(excess: float) -> float:
    return max(0.0, min(_MOST_EXCESS, excess))


def _cap(mine: float, theirs: float) -> float:
    """Return c: the seconds lost per second of a neighbour's work."""
    return mine * (1.0 + theirs) / (1.0 + mine)


def _laws(prefill: Sequence[float], decode: Sequence[float]) -> tuple[_Law, ...]:
    laws = []
    for kind in range(len(KINDS)):
        family = kind & 2
        theirs = prefill if kind & 1 else decode
        in_prefill = _cap(prefill[kind], theirs[family + 1])
        to_prefill = _cap(theirs[family + 1], prefill[kind])
        if kind == _SAME_PREFILLING:
            # At worst an engine reads one prompt after the other: nobody waits longer than that. A pair shows what a
            # short prompt loses beside long ones without end, which for its own length may be far more.
            in_prefill, to_prefill = min(1.0, in_prefill), min(1.0, to_prefill)
        in_decode = _cap(decode[kind], theirs[family])
        laws.append(
            _Law(
                prefill[kind],
                decode[kind],
                in_prefill,
                in_decode,
                max(in_prefill, in_decode),
                theirs[family + 1],
                theirs[family],
                to_prefill,
                _cap(theirs[family], decode[kind]),
            )
        )
    return tuple(laws)
