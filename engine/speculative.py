"""Tokens guessed ahead, that one step verifies together: what to guess, and when that pays.

Verification changes no answer (see ``engine.sampler``), so all that is decided here is speed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log
from typing import Protocol

from engine.request import Plan, Sequence
from engine.scheduler import Outcome

MOST = 8
"""Drafts a sequence has at most in one step."""
MEMORY = 0.98
"""What each further step leaves of the weight of those before, in the estimate of what steps cost."""
LEAST_ACCEPTANCE = 0.1
HOPE = 0.5
"""The acceptance that is expected before anything is known."""
DRIFT = 0.001
"""How fast an expectation rises again while nothing is tried: so that trying costs a hundredth of the time at most."""


class Proposer(Protocol):
    """Guesses how sequences go on; ``engine.draft`` has one that asks a smaller model."""

    def propose(self, sequences: list[Sequence], most: list[int]) -> None:
        """Sets the ``drafts`` of each sequence, at most so many; all their tokens but the last are in the cache."""

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""


@dataclass(slots=True)
class _Grams:
    """Where each run of tokens last occurred in a sequence: the place behind it. ``seen`` tokens are indexed."""

    behind: dict[tuple[int, ...], int] = field(default_factory=dict)
    seen: int = 0


class NgramProposer:
    """Prompt lookup: what followed when the last tokens occurred before (Saxena 2023), longest run first."""

    def __init__(self, longest: int = 4, shortest: int = 2) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._grams: dict[int, _Grams] = {}

    def propose(self, sequences: list[Sequence], most: list[int]) -> None:
        """Sets the ``drafts`` of each sequence, at most so many."""
        for sequence, limit in zip(sequences, most, strict=True):
            sequence.drafts = self._continuation(sequence, limit)

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        self._grams.pop(sequence.id, None)

    def _continuation(self, sequence: Sequence, limit: int) -> list[int]:
        tokens = sequence.tokens
        grams = self._grams.setdefault(sequence.id, _Grams())
        for end in range(max(grams.seen, 1), len(tokens)):  # not the run at the very end: nothing follows it yet
            for size in self._sizes:
                if size <= end:
                    grams.behind[tuple(tokens[end - size : end])] = end
        grams.seen = len(tokens)
        for size in self._sizes:
            place = grams.behind.get(tuple(tokens[-size:]))
            if place is not None:
                return tokens[place : place + limit]
        return []


@dataclass(slots=True)
class _Cost:
    """A step's seconds as a line over the positions that it computes, by least squares with fading memory."""

    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def learn(self, positions: int, seconds: float) -> None:
        self.weight = MEMORY * self.weight + 1
        self.x = MEMORY * self.x + positions
        self.y = MEMORY * self.y + seconds
        self.xx = MEMORY * self.xx + positions * positions
        self.xy = MEMORY * self.xy + positions * seconds

    def growing(self, positions: int) -> float:
        """The share of a step of so many positions that grows with them, 0 to 1; 0 while nothing is known."""
        spread = self.weight * self.xx - self.x * self.x
        if spread <= 1e-9 * self.weight * self.xx:
            return 0.0
        slope = (self.weight * self.xy - self.x * self.y) / spread
        whole = (self.y - slope * self.x) / self.weight + slope * positions
        return min(max(slope * positions / whole, 0.0), 1.0) if whole > 0 else 1.0


class Speculator:
    """Asks a proposer for as many drafts as pay, for each sequence, by what was accepted and what steps cost.

    A step of S sequences takes a + b * S seconds and gives S tokens; D drafts add b * D to that and give the accepted
    ones. So a draft pays while it is accepted with a probability over b * S / (a + b * S): the share of the step that
    grows with its size. The k-th draft of a sequence is accepted with acceptance ** k.
    """

    def __init__(self, proposer: Proposer, most: int = MOST) -> None:
        self.proposed = 0
        """Drafts verified since the start, and how many of them were ``accepted``."""
        self.accepted = 0
        self._proposer = proposer
        self._most = most
        self._overall = HOPE
        self._acceptance: dict[int, float] = {}
        self._cost = _Cost()

    def propose(self, decoding: list[Sequence]) -> None:
        """Sets the drafts of those whose drafts pay."""
        bar = max(self._cost.growing(len(decoding)), LEAST_ACCEPTANCE)
        chosen = []
        most = []
        for sequence in decoding:
            acceptance = self._acceptance.setdefault(sequence.id, max(self._overall, 2 * LEAST_ACCEPTANCE))
            if limit := self._length(acceptance, bar):
                chosen.append(sequence)
                most.append(limit)
            else:
                self._acceptance[sequence.id] += DRIFT * (1 - acceptance)
        if chosen:
            self._proposer.propose(chosen, most)

    def learn(self, plan: Plan, outcomes: list[Outcome], seconds: float) -> None:
        """Takes in how the drafts of a step fared, and what the step took."""
        if plan.tokens == sum(1 + outcome.drafted for outcome in outcomes):  # no prompt was read beside
            self._cost.learn(plan.tokens, seconds)
        for outcome in outcomes:
            if outcome.drafted and outcome.sequence.id in self._acceptance:
                accepted = max(len(outcome.tokens) - 1, 0)
                self.proposed += outcome.drafted
                self.accepted += accepted
                tried = min(accepted + 1, outcome.drafted)  # behind the first refused one nothing is known
                new = accepted / tried
                self._acceptance[outcome.sequence.id] += (1 - 0.9**tried) * (
                    new - self._acceptance[outcome.sequence.id]
                )
                self._overall += (1 - 0.99**tried) * (new - self._overall)

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        self._acceptance.pop(sequence.id, None)
        self._proposer.forget(sequence)

    def _length(self, acceptance: float, bar: float) -> int:
        """The largest length up to which each further draft pays."""
        if acceptance <= bar:
            return 0
        return self._most if acceptance >= 1 else min(int(log(bar) / log(acceptance)), self._most)
