"""How many arms this gateway's guardrails have stopped, for the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from policies.experiment_guardrails import Guardrail

MOST_MODELS = 200
"""Models that are told apart; what comes beyond is counted together."""
OTHERS = "(others)"


class Stops:
    """Counts by model and guardrail. Belongs to one event loop."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def count(self, model: str, guardrail: Guardrail) -> None:
        """An arm of an experiment on this model was stopped."""
        is_known = (model, guardrail.value) in self._counts
        room = is_known or len(self._counts) < MOST_MODELS * len(Guardrail)
        self._counts[model if room else OTHERS, guardrail.value] += 1

    def table(self, models: Iterable[str]) -> dict[tuple[str, str], int]:
        """Return the counts; nothing is 0 for each of ``models``, so that the first stop is seen as an increase."""
        return {(model, guardrail.value): 0 for model in models for guardrail in Guardrail} | self._counts
