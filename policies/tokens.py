"""Lengths that are not known yet: prompt tokens from bytes, and how long an answer will be."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

_START_BYTES_PER_TOKEN = 3.0
"""Before anything is learned: English has about 4.5 bytes per token, so this errs towards more tokens."""
_START_OVERHEAD_TOKENS = 16.0
"""What a chat template adds, until it is learned."""
_MOST_BYTES_PER_TOKEN = 12.0
"""No prompt is taken to have more, unless one was seen: long runs of blanks are few tokens."""
_FORGET = 0.97
_PRIOR = 0.2
_LEAST_BYTES = 64
_START_OUTPUT = 128.0
_OUTPUT_WEIGHT = 0.15
"""What a new answer counts once there are a few; the first ones count more."""
_MOST_MODELS = 512
_MOST_CALLERS = 4096


class _Line:
    """tokens = overhead + bytes × rate, by least squares with forgetting over (bytes, tokens) pairs."""

    __slots__ = ("bytes_", "bytes_squared", "densest", "product", "tokens", "weight")

    def __init__(self) -> None:
        """Begin with two made-up prompts on the starting line, so that one odd request does not turn it."""
        self.weight = self.bytes_ = self.tokens = self.bytes_squared = self.product = 0.0
        self.densest = _MOST_BYTES_PER_TOKEN
        for length in (0.0, 1024.0):
            self.add(length, _START_OVERHEAD_TOKENS + length / _START_BYTES_PER_TOKEN, _PRIOR)

    def add(self, length: float, tokens: float, weight: float) -> None:
        self.weight += weight
        self.bytes_ += weight * length
        self.tokens += weight * tokens
        self.bytes_squared += weight * length * length
        self.product += weight * length * tokens

    def learn(self, length: int, tokens: int) -> None:
        for name in ("weight", "bytes_", "tokens", "bytes_squared", "product"):
            setattr(self, name, getattr(self, name) * _FORGET)
        scale = 1.0 / (1.0 + length / 1024.0)
        self.add(float(length), float(tokens), scale * scale + 0.05)
        if length >= _LEAST_BYTES:
            self.densest = max(self.densest, 1.5 * length / tokens)

    def at(self, length: int) -> float:
        variance = self.weight * self.bytes_squared - self.bytes_ * self.bytes_
        rate = (self.weight * self.product - self.bytes_ * self.tokens) / variance if variance > 1e-9 else 0.0
        overhead = max(0.0, (self.tokens - rate * self.bytes_) / self.weight)
        if rate <= 0.0 or overhead == 0.0:
            rate = self.tokens / self.bytes_ if self.bytes_ else 1.0 / _START_BYTES_PER_TOKEN
            overhead = 0.0
        return overhead + rate * length


class TokenRatio:
    """Tokens from bytes, per model, learned from the engines' own counts. Remembers 512 models at most."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, _Line] = OrderedDict()

    def estimate(self, model: str, text_bytes: int) -> tuple[int, int]:
        """Return the probable number of prompt tokens and one that the true count does not go below."""
        line = self._lines.get(model)
        if line is None:
            probable = _START_OVERHEAD_TOKENS + text_bytes / _START_BYTES_PER_TOKEN
            densest = _MOST_BYTES_PER_TOKEN
        else:
            probable, densest = line.at(text_bytes), line.densest
        least = int(text_bytes / densest)
        return max(1, least, round(probable)), max(1, least)

    def learn(self, model: str, text_bytes: int, prompt_tokens: int) -> None:
        """Take an engine's count for a prompt of so many bytes of text. Prompts with images or audio teach nothing:
        leave them out."""
        if text_bytes <= 0 or prompt_tokens <= 0:
            return
        line = self._lines.get(model)
        if line is None:
            line = self._lines[model] = _Line()
            if len(self._lines) > _MOST_MODELS:
                self._lines.popitem(last=False)
        self._lines.move_to_end(model)
        line.learn(text_bytes, prompt_tokens)

    def to_dict(self) -> dict[str, dict[str, float]]:
        """Return what was learned, per model, as plain values for a store."""
        return {model: {name: getattr(line, name) for name in _Line.__slots__} for model, line in self._lines.items()}

    def restore(self, plain: Mapping[str, Mapping[str, Any]]) -> None:
        """Take back what ``to_dict`` gave. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything else."""
        for model, values in plain.items():
            line = _Line()
            for name in _Line.__slots__:
                setattr(line, name, float(values[name]))
            self._lines[model] = line
        while len(self._lines) > _MOST_MODELS:
            self._lines.popitem(last=False)


class OutputLength:
    """Expected answer lengths in tokens, per model and caller. Remembers 4,096 pairs at most."""

    def __init__(self) -> None:
        self._means: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()
        """Mean length and how many answers it is from; under the caller ``""`` those of all callers together."""

    def __len__(self) -> int:
        return len(self._means)

    def expect(self, model: str, caller: str, max_output: int | None) -> int:
        """Return how long an answer will probably be, ``max_output`` at most.

        A caller that is new is taken to be like the others of that model.
        """
        mean, _ = self._mean(model, caller)
        expected = max(1, round(mean))
        return expected if max_output is None else max(0, min(expected, max_output))

    def learn(self, model: str, caller: str, output_tokens: int, *, was_cut: bool = False) -> None:
        """Take a whole answer's length. ``was_cut``: its end was the limit, so that it says only "at least"."""
        if output_tokens <= 0:
            return
        for name in (caller, "") if caller else ("",):
            mean, seen = self._mean(model, name)
            if not was_cut or output_tokens > mean:
                weight = max(_OUTPUT_WEIGHT, 1.0 / (seen + 2.0))
                self._means[model, name] = mean + weight * (output_tokens - mean), seen + 1
                self._means.move_to_end((model, name))
        while len(self._means) > _MOST_CALLERS:
            self._means.popitem(last=False)

    def _mean(self, model: str, caller: str) -> tuple[float, int]:
        known = self._means.get((model, caller))
        if known is not None:
            return known
        mean, _ = self._means.get((model, ""), (_START_OUTPUT, 0))
        return mean, 0
