"""Rotary position embeddings' frequencies, with the scalings that the served families use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import UnsupportedModel

SCALINGS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class Rope:
    """How positions turn queries and keys; numbers that a scaling does not use are left at their defaults.

    ``kind`` is one of ``SCALINGS``; ``original`` the context in tokens before it was stretched by ``factor``.
    ``divisors`` are divisors of the frequencies ready-made, as GGUF files carry them. ``attention_factor`` is what
    cosine and sine are multiplied with.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    original: int = 0
    low: float = 1.0
    high: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    divisors: tuple[float, ...] = ()

    def frequencies(self, head_size: int) -> tuple[float, ...]:
        """Radians a position, [head_size / 2]; element i turns dimensions i and i + head_size / 2."""
        plain = [self.theta ** (-2 * i / head_size) for i in range(head_size // 2)]
        if self.divisors:
            return tuple(value / divisor for value, divisor in zip(plain, self.divisors, strict=True))
        if self.kind == "linear":
            return tuple(value / self.factor for value in plain)
        if self.kind == "llama3":
            return tuple(map(self._llama3, plain))
        if self.kind == "yarn":
            return self._yarn(plain, head_size)
        return tuple(plain)

    def _llama3(self, value: float) -> float:
        """Llama 3.1's: long waves are stretched, short ones left, those between are mixed."""
        turns = self.original * value / (2 * math.pi)
        share = min(max((turns - self.low) / (self.high - self.low), 0.0), 1.0)
        return (1 - share) * value / self.factor + share * value

    def _yarn(self, plain: list[float], head_size: int) -> tuple[float, ...]:
        """YaRN (Peng et al. 2023): a ramp between the dimensions that turn so often over the original context."""

        def dimension(turns: float) -> float:
            return head_size * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(self.theta))

        start, end = dimension(self.beta_fast), dimension(self.beta_slow)
        if self.truncate:
            start, end = math.floor(start), math.ceil(end)
        start, end = max(start, 0), min(end, head_size - 1)
        width = (end - start) or 0.001
        ramps = [min(max((i - start) / width, 0.0), 1.0) for i in range(len(plain))]
        return tuple(value / self.factor * ramp + value * (1 - ramp) for value, ramp in zip(plain, ramps, strict=True))


def rope_of(parameters: Mapping[str, Any], theta: float, context: int) -> Rope:
    """From a configuration's ``rope_scaling`` or ``rope_parameters``; ``UnsupportedModel`` for scalings of others."""
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in SCALINGS:
        raise UnsupportedModel(f"rope scaling {kind!r} is not supported; {', '.join(SCALINGS)} are")
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModel("a partial_rotary_factor other than 1 is not supported")
    original = parameters.get("original_max_position_embeddings") or context
    factor = float(parameters.get("factor") or context / original)
    scale = parameters.get("attention_factor")
    if kind == "yarn" and scale is None:
        over, under = parameters.get("mscale"), parameters.get("mscale_all_dim")
        scale = _magnitude(factor, over) / _magnitude(factor, under) if over and under else _magnitude(factor, 1.0)
    return Rope(
        theta=float(parameters.get("rope_theta", theta)),
        kind=kind,
        factor=factor,
        original=int(original),
        low=float(parameters.get("low_freq_factor", 1.0)),
        high=float(parameters.get("high_freq_factor", 4.0)),
        beta_fast=float(parameters.get("beta_fast") or 32.0),
        beta_slow=float(parameters.get("beta_slow") or 1.0),
        truncate=bool(parameters.get("truncate", True)),
        attention_factor=float(scale or 1.0),
        divisors=tuple(parameters.get("divisors", ())),
    )


def _magnitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0
