"""What a deployment's speed is when nothing runs beside it: measured curves, corrected by served requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from policies.attention import Attention
from policies.corrected import CorrectedCurve
from policies.machine import Machine
from policies.types import SpeedSample

_LEAST_S = 1e-6


class SpeedModel:
    """Seconds per prompt and per token of one fingerprint, alone on its hardware.

    ``prefill`` is the time from a request to its first token over the tokens that no cache holds, when it holds none,
    and ``attention`` what those tokens cost beyond that; ``tpot`` is the time per output token over the context: prompt
    and half of the output. Part of their corrections is the ``machine``'s.
    """

    __slots__ = ("attention", "machine", "prefill", "samples", "tpot")

    def __init__(self, samples: Iterable[SpeedSample], machine: Machine | None = None) -> None:
        """Fit a measurement. Raises ``ValueError`` when there is no sample with a prefill time."""
        self.machine = machine or Machine()
        self.samples = tuple(samples)
        read = [(s.prompt_tokens, s.prefill_s) for s in self.samples if s.prefill_s > 0.0 and s.prompt_tokens > 0]
        written = [(s.prompt_tokens + s.output_tokens / 2, s.tpot_s) for s in self.samples if s.tpot_s > 0.0]
        self.prefill = CorrectedCurve(read, machine=self.machine.prefill)
        self.attention = Attention(self.prefill.knots)
        self.tpot = CorrectedCurve(written or [(0.0, 0.0)], is_rate=True, machine=self.machine.tpot)

    def renew(self) -> None:
        """Another deployment has taught what is known of the machine."""
        self.prefill.renew()
        self.tpot.renew()

    def prefill_s(self, read: float, now: float, held: float = 0.0) -> float:
        """Return the time from the request to its first token: ``read`` tokens after those that a cache holds."""
        pairs = self.attention.beyond(read, held)
        alone_s = self.prefill.at(read, now)
        return alone_s + self.attention.pair_s * pairs * self.prefill.factor(now) if pairs else alone_s

    def decode_s(self, context: int, output_tokens: int, now: float) -> float:
        """Return the time from the first token to the last, after a prompt of ``context`` tokens."""
        if output_tokens < 2:
            return 0.0
        return (output_tokens - 1) * self.tpot.at(context + output_tokens // 2, now)

    def measured_s(self, read: int, context: int, output_tokens: int) -> float:
        """Return the total that the measurement says, without what served requests have corrected of its curves."""
        read_s = self.prefill.measured_at(read) + self.attention.pair_s * self.attention.beyond(read, context - read)
        return read_s + max(0, output_tokens - 1) * self.tpot.measured_at(context + output_tokens // 2)

    def observe_prefill(self, read: int, actual_s: float, now: float, held: int = 0) -> None:
        """Learn from a prompt that was read with nothing beside it."""
        actual_s = max(actual_s, _LEAST_S)
        if pairs := self.attention.beyond(read, held):
            factor = self.prefill.factor(now)
            self.attention.learn(pairs, actual_s / factor, self.prefill.at(read, now) / factor)
        self.prefill.learn(read, actual_s, max(self.prefill_s(read, now, held), _LEAST_S), now)

    def observe_decode(self, context: int, output_tokens: int, actual_s: float, now: float) -> None:
        """Learn from an answer that was written with nothing beside it. Two tokens at least, and a measured TPOT."""
        predicted = self.decode_s(context, output_tokens, now)
        if predicted > 0.0:
            self.tpot.learn(context + output_tokens // 2, max(actual_s, _LEAST_S), predicted, now)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values only, for a store; ``from_dict`` is the way back."""
        return {
            "samples": [[s.prompt_tokens, s.output_tokens, s.prefill_s, s.tpot_s] for s in self.samples],
            "prefill": self.prefill.to_dict(),
            "attention": self.attention.to_dict(),
            "tpot": self.tpot.to_dict(),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], machine: Machine | None = None) -> SpeedModel:
        """Raises ``KeyError``, ``TypeError`` or ``ValueError`` when ``plain`` did not come from ``to_dict``."""
        samples = (SpeedSample(int(p), int(o), float(s), float(t)) for p, o, s, t in plain["samples"])
        model = cls(samples, machine)
        model.prefill.restore(plain["prefill"])
        model.attention.restore(plain["attention"])
        model.tpot.restore(plain["tpot"])
        return model
