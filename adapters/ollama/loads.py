"""Whether a request had to wait for its model: Ollama's ``load_duration`` is never zero, so one must know the usual."""

from __future__ import annotations

from typing import Final

_SURELY_WARM_S: Final = 0.3
"""Warm requests were seen with 1 ms (0.32) and 40 to 140 ms (0.24), the load of a very small model with 500 ms."""

_TIMES_USUAL: Final = 5.0


class LoadTimes:
    """The shortest ``load_duration`` of each model, in seconds: what a warm request costs."""

    def __init__(self) -> None:
        self._usual: dict[str, float] = {}

    def load_s(self, model: str, duration_s: float, *, expected: bool) -> float:
        """The seconds that loading the model took, 0 when it was there.

        ``expected``: ``/api/ps`` did not have the model before, or had it with another context.
        """
        usual = self._usual.get(model)
        slow = duration_s > _SURELY_WARM_S and (usual is None or expected or duration_s > _TIMES_USUAL * usual)
        if slow:
            return duration_s
        if duration_s:
            self._usual[model] = min(usual or duration_s, duration_s)
        return 0.0
