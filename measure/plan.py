"""Which cell of a measurement comes next, within a budget of seconds. Pure: no engine, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import inf


class Plan:
    """The runs of a few prompt lengths, breadth before depth.

    The rule: every length once from the shortest up, then once from the longest down, and so on by turns: an engine may
    have to put a long prompt away before it reads the next (llama.cpp took a quarter longer for 32 tokens after 700),
    so that the shortest does not always come after the longest. Lengths beyond the ``first`` shortest join a round
    later, since for a slow engine they take what makes the others sure, those from ``spare`` tokens on when all others
    are done. A run is left out when it no longer fits the
    budget with what the shorter ones of its round will probably take, save for the first run of the ``least`` shortest
    lengths: without those there is no curve. A failed length is not tried again.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        runs: int,
        budget_s: float,
        least: int = 2,
        first: int = 3,
        spare: float = inf,
    ) -> None:
        self._taken: dict[int, list[float]] = {length: [] for length in sorted(set(lengths))}
        self._open = list(self._taken)
        self._runs = runs
        self._budget_s = budget_s
        self._least = least
        self._joins = dict.fromkeys(self._open[:first], 0) | dict.fromkeys(self._open[first:], 1)
        """The round that is a length's first one."""
        self._joins.update({length: runs + 1 for length in self._open if length >= spare})

    @property
    def runs_left(self) -> int:
        """Runs that are still wanted, should the budget allow them."""
        return sum(self._runs - len(self._taken[length]) for length in self._open)

    def next(self) -> int | None:
        """Return the prompt length of the next run; ``None`` when the measurement is done."""
        rounds: dict[int, list[int]] = {}
        for length in self._open:
            done = len(self._taken[length])
            if done < self._runs:
                rounds.setdefault(done + self._joins[length], []).append(length)
        for number, lengths in sorted(rounds.items()):
            ends_s = list(accumulate(map(self._cost_s, lengths), initial=self.spent_s))[1:]
            fitting = [
                length
                for length, end_s in zip(lengths, ends_s, strict=True)
                if self._must(length) or end_s <= self._budget_s
            ]
            if fitting:
                return fitting[-1 if number % 2 else 0]
        return None

    def ran(self, length: int, seconds: float) -> None:
        """A run of ``length`` succeeded and took ``seconds``."""
        self._taken[length].append(seconds)

    def failed(self, length: int) -> None:
        """A run of ``length`` failed."""
        self._open.remove(length)

    def cut(self) -> None:
        """Leave out all that is not necessary."""
        self._budget_s = 0.0

    @property
    def spent_s(self) -> float:
        """Seconds of all successful runs."""
        return sum(sum(taken) for taken in self._taken.values())

    def _must(self, length: int) -> bool:
        return not self._taken[length] and length in self._open[: self._least]

    def _cost_s(self, length: int) -> float:
        """The longest run of ``length``, or of the longest length that ran, scaled: too much rather than too little, as
        decoding does not grow. (Scaled from a short one, decoding would look like hours of reading.)"""
        if taken := self._taken[length]:
            return max(taken)
        longest = max((other for other, taken in self._taken.items() if taken), default=0)
        return max(self._taken[longest]) * max(1.0, length / longest) if longest else 0.0
