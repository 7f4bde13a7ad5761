"""How long the rest of a benchmark will take."""

from __future__ import annotations


class Pace:
    """How long what is left will take, from what has been measured. In seconds, a little too much rather than less."""

    def __init__(self) -> None:
        self._taken: dict[tuple[int, int, int], float] = {}

    def took(self, shape: tuple[int, int], concurrency: int, seconds: float) -> None:
        """A cell took so long, its warm-up included."""
        self._taken[(*shape, concurrency)] = seconds

    def expects(self, shape: tuple[int, int], concurrency: int) -> float | None:
        """Return the seconds that a cell will probably take; ``None`` before any was measured."""
        same = [(c, s) for (*seen, c), s in self._taken.items() if tuple(seen) == shape and c <= concurrency]
        if same:
            near, seconds = max(same)
            return seconds * concurrency / near
        prompt, output = shape
        others = [(p, o, c, s) for (p, o, c), s in self._taken.items()]
        if not others:
            return None
        # A token read costs about a tenth of one written, on most hardware.
        work = prompt / 10 + output
        p, o, c, seconds = max(others, key=lambda each: (each[0] <= prompt, each[0], each[1]))
        return seconds * work / (p / 10 + o) * concurrency / c
