"""All that is known of one fingerprint's speed: alone, beside others, and how far to trust it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from policies.contention import KINDS, Contention, starting_factors
from policies.drift import Spread
from policies.speed import SpeedModel
from policies.types import Hardware, Observation, PairSample, SpeedSample

_QUIET = 0.05
"""Mean neighbours up to which a request counts as alone."""
_FEW_TOKENS = 8
"""Answers below this many tokens say too little about decode speed."""


class Profile:
    """A speed model, contention factors and the spread of predictions made from both.

    The spread is kept apart for requests that ran alone and for those that did not.
    """

    __slots__ = ("contention", "speed", "spread_alone", "spread_beside")

    def __init__(self, speed: SpeedModel, contention: Contention) -> None:
        self.speed = speed
        self.contention = contention
        self.spread_alone = Spread()
        self.spread_beside = Spread()

    @classmethod
    def measured(cls, samples: Iterable[SpeedSample], pairs: Iterable[PairSample], hardware: Hardware) -> Profile:
        """Begin from a measurement. Raises ``ValueError`` when no sample has a prefill time."""
        return cls(SpeedModel(samples), Contention.measured(pairs, starting_factors(hardware)))

    def observe(self, seen: Observation, now: float) -> None:
        """Learn from a finished request. Cold, failed and cancelled ones are passed over, as is what came from a cache.

        What ran alone corrects the speeds, what ran beside others the contention: never both.
        """
        if not seen.clean or seen.prompt_tokens <= 0 or seen.total_s <= 0.0:
            return
        phases = [
            phase for phase in (self._learn_prefill(seen, now), self._learn_decode(seen, now)) if phase is not None
        ]
        if phases:
            quiet = sum(seen.neighbours.get(kind, 0.0) for kind in KINDS) <= _QUIET
            spread = self.spread_alone if quiet else self.spread_beside
            spread.learn(sum(actual for actual, _ in phases), sum(predicted for _, predicted in phases))

    def _learn_prefill(self, seen: Observation, now: float) -> tuple[float, float] | None:
        """Return actual and predicted seconds, after learning from them; ``None`` when nothing is to be learned."""
        neighbours = _beside(seen, "prefill")
        read = _tokens_read(seen)
        actual = _prefill_s(seen, neighbours)
        alone = self.speed.prefill_s(read, now) if read > 0 else 0.0
        if actual is None or actual <= 0.0 or alone <= 0.0:
            return None
        predicted = alone * self.contention.factor("prefill", neighbours)
        if sum(neighbours.values()) <= _QUIET:
            self.speed.observe_prefill(read, actual, now)
        else:
            self.contention.learn("prefill", neighbours, actual / alone)
        return actual, predicted

    def _learn_decode(self, seen: Observation, now: float) -> tuple[float, float] | None:
        neighbours = _beside(seen, "decode")
        actual = seen.total_s - seen.ttft_s if seen.decode_s is None else seen.decode_s
        alone = self.speed.decode_s(seen.prompt_tokens, seen.output_tokens, now)
        if actual <= 0.0 or alone <= 0.0 or seen.output_tokens < _FEW_TOKENS:
            return None
        predicted = alone * self.contention.factor("decode", neighbours)
        if sum(neighbours.values()) <= _QUIET:
            self.speed.observe_decode(seen.prompt_tokens, seen.output_tokens, actual, now)
        else:
            self.contention.learn("decode", neighbours, actual / alone)
        return actual, predicted

    def to_dict(self) -> dict[str, Any]:
        """Return plain values only, for a store."""
        return {
            "speed": self.speed.to_dict(),
            "contention": self.contention.to_dict(),
            "spread_alone": self.spread_alone.to_dict(),
            "spread_beside": self.spread_beside.to_dict(),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Profile:
        """Raises ``KeyError``, ``TypeError`` or ``ValueError`` when ``plain`` did not come from ``to_dict``."""
        profile = cls(SpeedModel.from_dict(plain["speed"]), Contention.from_dict(plain["contention"]))
        profile.spread_alone = Spread.from_dict(plain["spread_alone"])
        profile.spread_beside = Spread.from_dict(plain["spread_beside"])
        return profile


def _tokens_read(seen: Observation) -> int:
    """Prompt tokens that the engine had to read, as far as that is known; else 0."""
    if seen.cached_tokens is not None:
        return seen.prompt_tokens - seen.cached_tokens
    return seen.prompt_tokens if seen.new_prompt else 0


def _prefill_s(seen: Observation, neighbours: Mapping[str, float]) -> float | None:
    """The client's time to the first token without queue and load, as ``SpeedSample`` has it.

    With others in the same engine and no word about the queue, that time may hold a wait: then only the engine's own
    timing will do.
    """
    waited = neighbours.get("same_decoding", 0.0) + neighbours.get("same_prefilling", 0.0) > _QUIET
    if waited and seen.queue_s is None:
        return seen.prefill_s
    return seen.ttft_s - (seen.queue_s or 0.0) - (seen.load_s or 0.0)


def _beside(seen: Observation, phase: str) -> dict[str, float]:
    """The mean numbers of neighbours during a phase, or over the request's life where only that is known."""
    return {kind: seen.neighbours.get(f"{phase}_{kind}", seen.neighbours.get(kind, 0.0)) for kind in KINDS}
