"""All that is known of one fingerprint's speed: alone, beside others, and how far to trust it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from policies.contention import KINDS, Contention, starting_factors
from policies.interval import Intervals
from policies.machine import Machine
from policies.speed import SpeedModel
from policies.types import BatchSample, Hardware, Observation, PairSample, SpeedSample

QUIET = 0.05
"""Mean neighbours up to which a request counts as alone."""
_FEW_TOKENS = 8
"""Answers below this many tokens say too little about decode speed."""
_COMPANY_WEIGHT = 0.1
_OPENINGS = 6
_OPENING_MOST = 64
"""Prompts too short to be remembered count as new when no more than so many of their tokens were cached."""
_DRIFT_WINDOW = 20
_DRIFT_MISSES = 16
"""So many of the last outcomes have to be off in the same direction before a measurement is called outdated."""
_LEAST_DRIFT = 0.3
"""Below this relative distance nothing is outdated: a machine's speed wanders by 5 to 21 % within minutes."""


class Profile:
    """A speed model, contention factors, and the intervals of predictions made from both.

    ``company`` is how many others usually run beside a request, in the mean, and ``usual_spread`` the relative
    half-width of the interval of a request that finds nobody there. ``opening_tokens`` is what the engine's cache holds
    of a prompt that nobody has sent before: the chat template's opening.
    """

    __slots__ = (
        "_off",
        "_openings",
        "company",
        "contention",
        "intervals",
        "opening_tokens",
        "speed",
        "usual_spread",
    )

    def __init__(self, speed: SpeedModel, contention: Contention) -> None:
        self.speed = speed
        self.contention = contention
        self.intervals = Intervals()
        self.company = 0.0
        self.opening_tokens = 0
        self._openings: deque[int] = deque(maxlen=_OPENINGS)
        self.usual_spread = self.intervals.half_width(0.0)
        self._off: deque[float] = deque(maxlen=_DRIFT_WINDOW)
        """Actual over measured time of the last requests that ran alone."""

    @classmethod
    def measured(
        cls,
        samples: Iterable[SpeedSample],
        pairs: Iterable[PairSample],
        hardware: Hardware,
        batches: Iterable[BatchSample] = (),
        machine: Machine | None = None,
    ) -> Profile:
        """Begin from a measurement. Raises ``ValueError`` when no sample has a prefill time."""
        return cls(SpeedModel(samples, machine), Contention.measured(pairs, starting_factors(hardware), batches))

    @property
    def drifted(self) -> str | None:
        """Say in words that the measurement does not hold any more; ``None`` as long as it does."""
        if len(self._off) < _DRIFT_WINDOW:
            return None
        far = max(self.intervals.alone, _LEAST_DRIFT)
        slower = sum(ratio > 1.0 + far for ratio in self._off)
        faster = sum(ratio < 1.0 / (1.0 + far) for ratio in self._off)
        if max(slower, faster) < _DRIFT_MISSES:
            return None
        ratio = median(self._off)
        how = f"{ratio:.1f} times as long as" if slower > faster else f"{1.0 / ratio:.1f} times less than"
        return f"{max(slower, faster)} of the last {_DRIFT_WINDOW} answers took {how} measured, outside of the interval"

    def observe(self, seen: Observation, now: float) -> None:
        """Learn from a finished request. Cold, failed and cancelled ones are passed over, as is what came from a cache.

        What ran alone corrects the speeds, what ran beside others the contention: never both.
        """
        if not seen.clean or seen.prompt_tokens <= 0 or seen.total_s <= 0.0:
            return
        company = sum(seen.neighbours.get(kind, 0.0) for kind in KINDS)
        self.company += _COMPANY_WEIGHT * (company - self.company)
        self._judge(seen)
        self._learn_opening(seen)
        phases = [
            phase for phase in (self._learn_prefill(seen, now), self._learn_decode(seen, now)) if phase is not None
        ]
        if phases:
            self._learn_intervals(seen, company, phases)
        self.usual_spread = self.intervals.half_width(self.company)

    def _learn_opening(self, seen: Observation) -> None:
        """Believe the second smallest of the last counts: a slot that is used for the first time holds nothing yet, and
        a short prompt that was sent before all of it. Measurements have no template, and no prediction."""
        cached = seen.cached_tokens
        if cached is None or seen.predicted is None or not (seen.new_prompt or cached <= _OPENING_MOST):
            return
        self._openings.append(cached)
        self.opening_tokens = _second_smallest(self._openings)

    def _learn_intervals(self, seen: Observation, company: float, phases: Sequence[tuple[float, float]]) -> None:
        actual_s, predicted_s = sum(actual for actual, _ in phases), sum(predicted for _, predicted in phases)
        if seen.predicted is None:
            self.intervals.learn(actual_s, predicted_s, company)
        if company <= QUIET and (len(phases) == 2 or seen.output_tokens < 2):
            measured_s = self.speed.measured_s(_tokens_read(seen), seen.prompt_tokens, seen.output_tokens)
            if measured_s > 0.0:
                self._off.append(actual_s / measured_s)

    def _judge(self, seen: Observation) -> None:
        """Hold what happened against what was predicted for it, had the answer's length been known."""
        predicted = seen.predicted
        if predicted is None:
            return
        decode_s = predicted.decode_s
        if decode_s > 0.0:
            decode_s *= max(0, seen.output_tokens - 1) / max(1, seen.expected_output - 1)
        predicted_s = predicted.ttft_s + decode_s
        if predicted_s > 0.0:
            self.intervals.judge(seen.total_s, predicted_s, predicted.spread)
            self.intervals.learn(seen.total_s, predicted_s, predicted.company)

    def _learn_prefill(self, seen: Observation, now: float) -> tuple[float, float] | None:
        """Return actual and predicted seconds, after learning from them; ``None`` when nothing is to be learned."""
        neighbours = _beside(seen, "prefill")
        read = _tokens_read(seen)
        actual = self._prefill_s(seen, neighbours, now)
        held = seen.prompt_tokens - read
        alone = self.speed.prefill_s(read, now, held) if read > 0 else 0.0
        if actual is None or actual <= 0.0 or alone <= 0.0:
            return None
        predicted = alone * self.contention.factor("prefill", neighbours)
        if sum(neighbours.values()) <= QUIET:
            self.speed.observe_prefill(read, actual, now, held)
        else:
            self.contention.learn("prefill", neighbours, actual / alone)
        return actual, predicted

    def _prefill_s(self, seen: Observation, neighbours: Mapping[str, float], now: float) -> float | None:
        """The client's time to the first token without queue, load and the step of a batch that decodes, which are
        predicted by themselves.

        With others in the same engine and no word about the queue, that time may hold a wait for a slot: then, unless
        there are more slots than requests, only the engine's own timing will do.
        """
        decoding = neighbours.get("same_decoding", 0.0)
        others = decoding + neighbours.get("same_prefilling", 0.0)
        joins_s = 0.0
        if others > QUIET:
            may_have_waited = seen.slots is not None and others >= seen.slots
            if seen.queue_s is None and (seen.prefill_s is not None or may_have_waited):
                return seen.prefill_s
            joins_s = self.contention.joins_s(decoding, self.speed.tpot.at(seen.prompt_tokens, now))
        return seen.ttft_s - max(seen.queue_s or 0.0, joins_s) - (seen.load_s or 0.0)

    def _learn_decode(self, seen: Observation, now: float) -> tuple[float, float] | None:
        neighbours = _beside(seen, "decode")
        actual = seen.total_s - seen.ttft_s if seen.decode_s is None else seen.decode_s
        alone = self.speed.decode_s(seen.prompt_tokens, seen.output_tokens, now)
        if actual <= 0.0 or alone <= 0.0 or seen.output_tokens < _FEW_TOKENS:
            return None
        predicted = alone * self.contention.factor("decode", neighbours)
        if sum(neighbours.values()) <= QUIET:
            self.speed.observe_decode(seen.prompt_tokens, seen.output_tokens, actual, now)
        else:
            self.contention.learn("decode", neighbours, actual / alone)
        return actual, predicted

    def to_dict(self) -> dict[str, Any]:
        """Return plain values only, for a store."""
        return {
            "speed": self.speed.to_dict(),
            "contention": self.contention.to_dict(),
            "intervals": self.intervals.to_dict(),
            "company": self.company,
            "off": list(self._off),
            "openings": list(self._openings),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], machine: Machine | None = None) -> Profile:
        """Raises ``KeyError``, ``TypeError`` or ``ValueError`` when ``plain`` did not come from ``to_dict``."""
        profile = cls(SpeedModel.from_dict(plain["speed"], machine), Contention.from_dict(plain["contention"]))
        profile.intervals = Intervals.from_dict(plain["intervals"])
        profile.company = float(plain["company"])
        profile.usual_spread = profile.intervals.half_width(profile.company)
        profile._off.extend(float(ratio) for ratio in plain["off"])
        profile._openings.extend(int(count) for count in plain["openings"])
        profile.opening_tokens = _second_smallest(profile._openings)
        return profile


def _second_smallest(counts: Iterable[int]) -> int:
    """Return 0 for none, and the only one of one."""
    return next(iter(sorted(counts)[1::-1]), 0)


def _tokens_read(seen: Observation) -> int:
    """Prompt tokens that the engine had to read, as far as that is known; else 0."""
    if seen.cached_tokens is not None:
        return seen.prompt_tokens - seen.cached_tokens
    return seen.prompt_tokens if seen.new_prompt else 0


def _beside(seen: Observation, phase: str) -> dict[str, float]:
    """The mean numbers of neighbours during a phase, or over the request's life where only that is known."""
    return {kind: seen.neighbours.get(f"{phase}_{kind}", seen.neighbours.get(kind, 0.0)) for kind in KINDS}
