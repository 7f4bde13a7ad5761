"""One request's hold on its model: from the moment that it is sent until its answer ends."""

from __future__ import annotations

from adapters.ollama.context import Contexts
from adapters.ollama.loads import LoadTimes


class Turn:
    """Counts the request's context size while it lasts; ends once, however often it is told."""

    def __init__(self, contexts: Contexts, loads: LoadTimes, model: str, num_ctx: int) -> None:
        self.num_ctx = num_ctx
        self._contexts = contexts
        self._loads = loads
        self._model = model
        self._expects_load = contexts.resident(model) != num_ctx
        self._over = False
        contexts.begin(model, num_ctx)

    def answered(self, load_duration_s: float) -> float:
        """Ollama has answered to the end: return the seconds that loading the model took, 0 when it was there."""
        self.over(loaded=True)
        return self._loads.load_s(self._model, load_duration_s, expected=self._expects_load)

    def over(self, *, loaded: bool = False) -> None:
        """The request is over; ``loaded`` when it is known that the model is resident with this context now."""
        if not self._over:
            self._over = True
            self._contexts.end(self._model, self.num_ctx, loaded=loaded)
