"""What the cache did for each model since the start: counted, never remembered by prompt."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Final

_MOST_MODELS: Final = 200
OTHERS: Final = "(others)"


@dataclass(slots=True)
class Counts:
    """One model's figures. ``saved_s`` is what the engine took for what was not asked again."""

    hits: int = 0
    misses: int = 0
    coalesced: int = 0
    bypassed: int = 0
    stored: int = 0
    unreadable: int = 0
    saved_prompt_tokens: int = 0
    saved_output_tokens: int = 0
    saved_s: float = 0.0


class Statistics:
    """Counts by model, a bound number of them."""

    def __init__(self) -> None:
        self._by_model: dict[str, Counts] = {}

    def of(self, model: str) -> Counts:
        """Return a model's counts, to be added to."""
        counts = self._by_model.get(model)
        if counts is None:
            if len(self._by_model) >= _MOST_MODELS:
                model = OTHERS
            counts = self._by_model.setdefault(model, Counts())
        return counts

    def table(self) -> dict[str, dict[str, float]]:
        """Return all counts by model."""
        return {model: asdict(counts) for model, counts in sorted(self._by_model.items())}

    def total(self) -> dict[str, float]:
        """Return the sums."""
        return {
            field.name: sum(getattr(counts, field.name) for counts in self._by_model.values())
            for field in fields(Counts)
        }
