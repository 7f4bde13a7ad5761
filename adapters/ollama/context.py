"""Which context size to ask Ollama for: another ``num_ctx`` than the resident model has makes it load that again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PROMPT_MARGIN: Final = 1.1
PROMPT_EXTRA: Final = 32
"""A prompt's length is an estimate: so much is kept free beyond it, or the answer could outgrow the context."""

ROOM: Final = 512
"""Tokens kept for an answer whose limit nobody gave."""

DEFAULT_CONTEXT: Final = 4096
"""The smallest context that is asked for when a model is not resident: Ollama's own smallest default."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a request needs. Tokens; ``least`` is a context that the client asked for itself."""

    prompt: int
    max_output: int | None = None
    least: int = 0

    @property
    def prompt_bound(self) -> int:
        return int(self.prompt * PROMPT_MARGIN) + PROMPT_EXTRA

    @property
    def context(self) -> int:
        """The context that this takes."""
        room = ROOM if self.max_output is None else self.max_output
        return max(self.prompt_bound + room, self.least)

    def num_predict(self, num_ctx: int) -> int:
        """How much may be written in ``num_ctx``: beyond it Ollama drops the prompt's beginning without a word.

        Never less than a sixteenth of the context: the estimate may be too high, and a prompt that really is too long
        is refused anyway.
        """
        room = max(num_ctx - self.prompt_bound, num_ctx // 16, 1)
        return room if self.max_output is None else min(self.max_output, room)


class Contexts:
    """The context that each model runs with, as far as it is known, and the next request's.

    The resident size is kept where a request fits. Otherwise one of few sizes is taken, powers of two up to the model's
    own context; it never shrinks while the model stays loaded, so that clients with different needs do not make it load
    again and again. Models that share their weights share one runner: what is called model here is what is loaded.
    Bounded by the number of models that Ollama has.
    """

    def __init__(self, fixed: int | None = None) -> None:
        """``fixed`` is the operator's own ``num_ctx``: then there is no other."""
        self._fixed = fixed
        self._resident: dict[str, int] = {}
        self._planned: dict[str, list[int]] = {}

    def seen(self, resident: dict[str, int]) -> None:
        """Take over what ``/api/ps`` says: model name → context."""
        self._resident = dict(resident)

    def resident(self, model: str) -> int | None:
        """The context that a model runs with, or will when the requests under way have loaded it."""
        planned = self._planned.get(model)
        return planned[0] if planned else self._resident.get(model)

    def choose(self, model: str, need: Need, *, limit: int, default: int | None = None) -> int:
        """The ``num_ctx`` for a request. ``limit`` is the model's own context, ``default`` its Modelfile's."""
        if self._fixed is not None:
            return self._fixed
        current = self.resident(model) or 0
        if current >= min(need.context, limit):
            return current
        least = need.context if current else max(need.context, default or DEFAULT_CONTEXT)
        return max(min(_power_of_two(least), limit), current)

    def larger(self, num_ctx: int, prompt_tokens: int | None, need: Need, *, limit: int) -> int | None:
        """The next size after a prompt did not fit into ``num_ctx``; ``None`` when there is none."""
        if self._fixed is not None or num_ctx >= limit:
            return None
        if prompt_tokens is not None and prompt_tokens >= limit:
            return None
        least = num_ctx + 1
        if prompt_tokens is not None:
            least = max(least, Need(prompt_tokens, need.max_output, need.least).context)
        return min(_power_of_two(least), limit)

    def begin(self, model: str, num_ctx: int) -> None:
        """Count a request on its way: requests after it take the same size. Ends with ``end``."""
        planned = self._planned.setdefault(model, [num_ctx, 0])
        planned[0] = max(planned[0], num_ctx)
        planned[1] += 1

    def end(self, model: str, num_ctx: int, *, loaded: bool) -> None:
        """A request is over; ``loaded``: Ollama has answered it, so the model is resident with ``num_ctx``."""
        planned = self._planned[model]
        planned[1] -= 1
        if loaded:
            self._resident[model] = num_ctx
        if not planned[1]:
            del self._planned[model]


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
