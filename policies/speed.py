"""What a deployment's speed is when nothing runs beside it: measured curves, corrected by served requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from policies.curve import Curve
from policies.drift import Drift
from policies.types import SpeedSample

_LEAST_S = 1e-6


class SpeedModel:
    """Seconds per prompt and per token of one fingerprint, alone on its hardware.

    Prefill is piecewise linear and monotone in the uncached tokens, TPOT in the context length (prompt and half of the
    output). Each has a drift factor of its own.
    """

    __slots__ = ("_prefill", "_tpot", "decode_drift", "prefill_drift", "prefill_per_token_s", "samples")

    def __init__(self, samples: Iterable[SpeedSample]) -> None:
        """Fit a measurement. Raises ``ValueError`` when there is no sample with a prefill time."""
        self.samples = tuple(samples)
        read = [(s.prompt_tokens, s.prefill_s) for s in self.samples if s.prefill_s > 0.0 and s.prompt_tokens > 0]
        written = [(s.prompt_tokens + s.output_tokens / 2, s.tpot_s) for s in self.samples if s.tpot_s > 0.0]
        self._prefill = Curve(read)
        self._tpot = Curve(written) if written else Curve([(0, 0.0)])
        self.prefill_per_token_s = self._prefill.mean_slope
        self.prefill_drift = Drift()
        self.decode_drift = Drift()

    def prefill_s(self, tokens: int, now: float) -> float:
        """Return the time from the request to its first token, for so many tokens that no cache holds."""
        return self._prefill.at(tokens) * self.prefill_drift.factor(now)

    def tpot_s(self, context: int, now: float) -> float:
        """Return the seconds per output token at so many tokens of context."""
        return self._tpot.at(context) * self.decode_drift.factor(now)

    def decode_s(self, context: int, output_tokens: int, now: float) -> float:
        """Return the time from the first token to the last, after a prompt of ``context`` tokens."""
        if output_tokens < 2:
            return 0.0
        return (output_tokens - 1) * self.tpot_s(context + output_tokens // 2, now)

    def observe_prefill(self, tokens: int, actual_s: float, now: float) -> None:
        """Learn from a prompt that was read with nothing beside it."""
        self.prefill_drift.learn(max(actual_s, _LEAST_S), max(self.prefill_s(tokens, now), _LEAST_S), now)

    def observe_decode(self, context: int, output_tokens: int, actual_s: float, now: float) -> None:
        """Learn from an answer that was written with nothing beside it. Two tokens at least, and a measured TPOT."""
        predicted = self.decode_s(context, output_tokens, now)
        if predicted > 0.0:
            self.decode_drift.learn(max(actual_s, _LEAST_S), predicted, now)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values only, for a store; ``from_dict`` is the way back."""
        return {
            "samples": [[s.prompt_tokens, s.output_tokens, s.prefill_s, s.tpot_s] for s in self.samples],
            "prefill_drift": self.prefill_drift.to_dict(),
            "decode_drift": self.decode_drift.to_dict(),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> SpeedModel:
        """Raises ``KeyError``, ``TypeError`` or ``ValueError`` when ``plain`` did not come from ``to_dict``."""
        model = cls(SpeedSample(int(p), int(o), float(s), float(t)) for p, o, s, t in plain["samples"])
        model.prefill_drift = Drift.from_dict(plain["prefill_drift"])
        model.decode_drift = Drift.from_dict(plain["decode_drift"])
        return model
