"""What runs beside what, at the moment of a decision."""

from __future__ import annotations

from policies.contention import NOBODY, Beside
from policies.predict import within
from policies.roster import Option, Roster
from policies.view import FleetView

_DUST = 1e-9
"""What a sum may be off by after something was taken from it."""


class Neighbourhood:
    """What runs on each set of devices at this moment, summed once for all options."""

    __slots__ = ("_sums", "_works")

    def __init__(self, known: Roster, fleet: FleetView, prompt_tokens: int) -> None:
        """``prompt_tokens`` of this request stand for the context of the others."""
        self._works: dict[str, tuple[Beside, Beside]] = {}
        """What runs and waits on each busy deployment, and the part of it that has a slot. For others, an engine that
        lingers is one that decodes."""
        self._sums: dict[int, list[float]] = {}
        predictor, now = fleet.predictor, fleet.now
        shared, overlaps = known.shared, known.overlaps
        for id_, load in fleet.loads.items():
            if id_ not in shared:
                continue
            deployment, area = shared[id_]
            if load.inflight or load.foreign_running or load.foreign_waiting:
                work = predictor.work(deployment, load, now, prompt_tokens)
                runs = work if deployment.slots is None else within(work, deployment.slots)
            elif load.lingers_s:
                work, runs = NOBODY, Beside(1.0, 0.0, load.lingers_s, 0.0)
            else:
                continue
            self._works[id_] = work, runs
            decoding, prefilling, decode_s, prefill_s = runs
            for i in overlaps[area]:
                sums = self._sums.get(i)
                if sums is None:
                    self._sums[i] = [decoding, prefilling, decode_s, prefill_s, 1.0]
                    continue
                sums[0] += decoding
                sums[1] += prefilling
                sums[2] += decode_s
                sums[3] += prefill_s
                sums[4] += 1.0

    def of(self, option: Option) -> tuple[Beside, Beside]:
        """Return what an option's deployment does itself, and what the others on its hardware do."""
        sums = self._sums.get(option.area)
        if sums is None:
            return NOBODY, NOBODY
        decoding, prefilling, decode_s, prefill_s, busy = sums
        works = self._works.get(option.id)
        if works is None:
            return NOBODY, Beside(decoding, prefilling, decode_s, prefill_s)
        own, runs = works
        if busy == 1.0:
            return own, NOBODY
        decoding -= runs.decoding
        prefilling -= runs.prefilling
        decode_s -= runs.decode_s
        prefill_s -= runs.prefill_s
        return own, Beside(
            decoding if decoding > _DUST else 0.0,
            prefilling if prefilling > _DUST else 0.0,
            decode_s if decode_s > _DUST else 0.0,
            prefill_s if prefill_s > _DUST else 0.0,
        )
