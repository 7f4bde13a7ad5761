"""Tokens guessed ahead, that one step verifies together: what to guess, and when that pays.

Verification changes no answer (see ``engine.sampler``), so all that is decided here is speed.
"""

from __future__ import annotations

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
"""How fast expectations rise again while nothing is tried: so that trying costs a hundredth of the time at most."""
TRIAL = 0.01
"""The share of the time that guesses may cost before they pay."""
CREDIT_S = 0.25
"""What they may cost at first, and the most of what they saved that counts for later."""


class Proposer(Protocol):
    """Guesses how sequences go on; ``engine.draft`` has one that asks a smaller model."""

    def propose(self, sequences: list[Sequence], most: list[int]) -> None:
        """Sets the ``drafts`` of each sequence, at most so many; all their tokens but the last are in the cache."""

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""


class NgramProposer:
    """Prompt lookup: what followed when the last tokens occurred before (Saxena 2023), longest run first."""

    def __init__(self, longest: int = 4, shortest: int = 2) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._runs: dict[int, tuple[dict[tuple[int, ...], int], int]] = {}
        """For each sequence where runs of its tokens last occurred (the place behind), and how many are indexed."""

    def propose(self, sequences: list[Sequence], most: list[int]) -> None:
        """Sets the ``drafts`` of each sequence, at most so many."""
        for sequence, limit in zip(sequences, most, strict=True):
            sequence.drafts = self._continuation(sequence, limit)

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        self._runs.pop(sequence.id, None)

    def _continuation(self, sequence: Sequence, limit: int) -> list[int]:
        tokens = sequence.tokens
        behind, indexed = self._runs.get(sequence.id, ({}, 1))
        for end in range(indexed, len(tokens)):  # not the run at the very end: nothing follows it yet
            for size in self._sizes:
                if size <= end:
                    behind[tuple(tokens[end - size : end])] = end
        self._runs[sequence.id] = behind, len(tokens)
        places = (behind.get(tuple(tokens[-size:])) for size in self._sizes)
        place = next((place for place in places if place is not None), len(tokens))
        return tokens[place : place + limit]


class _Cost:
    """A step's seconds as a line over the positions that it computes, by least squares with fading memory."""

    def __init__(self) -> None:
        self._sums: tuple[float, ...] = (0.0,) * 5

    def learn(self, positions: int, seconds: float) -> None:
        new = (1, positions, seconds, positions * positions, positions * seconds)
        self._sums = tuple(MEMORY * old + one for old, one in zip(self._sums, new, strict=True))

    def at(self, positions: int) -> tuple[float, float]:
        """Seconds of a step of so many positions, and those of them that grow with the positions; 0 when unknown."""
        weight, x, y, xx, xy = self._sums
        spread = weight * xx - x * x
        if spread <= 1e-9 * weight * xx:
            return (y / weight if weight else 0.0), 0.0
        slope = max((weight * xy - x * y) / spread, 0.0)
        growing = slope * positions
        return max((y - slope * x) / weight + growing, growing), growing


class Speculator:
    """Asks a proposer for as many drafts as pay, for each sequence, by what was accepted and what steps cost.

    A step of S sequences takes a + b * S seconds and gives S tokens; D drafts add b * D to that and give the accepted
    ones, and a round of them, one for each sequence, takes the proposer d. So a draft pays while it is accepted with a
    probability over (b * S + d) / (a + b * S). The k-th draft of a sequence is accepted with acceptance ** k.

    Before its first drafts for a sequence a proposer may have to read all of it. That is paid from a credit: what
    drafts have saved, and a small share of all time. So they cost no more than that where they never pay.
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
        self._round_s: float | None = None
        self._credit_s = CREDIT_S
        self._read: set[int] = set()
        self._asked: list[Sequence] = []

    def propose(self, decoding: list[Sequence]) -> None:
        """Sets the drafts of those whose drafts pay."""
        whole_s, growing_s = self._cost.at(len(decoding))
        share = (growing_s + (self._round_s or 0.0)) / whole_s if whole_s else 0.0
        bar = max(share, LEAST_ACCEPTANCE)
        lengths: dict[Sequence, int] = {}
        for sequence in decoding:
            acceptance = self._acceptance.setdefault(sequence.id, max(self._overall, 2 * LEAST_ACCEPTANCE))
            affordable = sequence.id in self._read or self._credit_s > 0
            if affordable and (length := self._length(acceptance, bar)):
                lengths[sequence] = length
            else:
                self._acceptance[sequence.id] += DRIFT * (1 - acceptance)
        self._asked = list(lengths)
        if lengths:
            self._proposer.propose(self._asked, list(lengths.values()))
        elif self._round_s is not None:
            self._round_s *= 1 - DRIFT

    def learn(self, plan: Plan, outcomes: list[Outcome], seconds: float, guessing_s: float = 0.0) -> None:
        """Takes in how the drafts of a step fared, and what the step took, ``guessing_s`` of it in ``propose``."""
        self._learn_round(outcomes, guessing_s)
        spent_s, gained = guessing_s, sum(max(len(outcome.tokens) - 1, 0) for outcome in outcomes if outcome.drafted)
        plain_s, _ = self._cost.at(len(outcomes))
        if plan.tokens == sum(1 + outcome.drafted for outcome in outcomes):  # no prompt was read beside
            self._cost.learn(plan.tokens, seconds - guessing_s)
            if plan.tokens > len(outcomes):
                spent_s += seconds - guessing_s - plain_s
        saved_s = gained * plain_s / max(len(outcomes), 1) - spent_s
        self._credit_s = min(self._credit_s + saved_s + TRIAL * seconds, CREDIT_S)
        for outcome in outcomes:
            number = outcome.sequence.id
            if outcome.drafted and number in self._acceptance:
                accepted = max(len(outcome.tokens) - 1, 0)
                self.proposed += outcome.drafted
                self.accepted += accepted
                tried = min(accepted + 1, outcome.drafted)  # behind the first refused one nothing is known
                new = accepted / tried
                self._acceptance[number] += (1 - 0.9**tried) * (new - self._acceptance[number])
                self._overall += (1 - 0.99**tried) * (new - self._overall)

    def _learn_round(self, outcomes: list[Outcome], guessing_s: float) -> None:
        """Takes in what a round of drafts cost, unless a sequence was read for the first time beside."""
        rounds = max((outcome.drafted for outcome in outcomes), default=0)
        if rounds and all(sequence.id in self._read for sequence in self._asked):
            new_s = guessing_s / rounds
            self._round_s = new_s if self._round_s is None else self._round_s + 0.2 * (new_s - self._round_s)
        self._read.update(o.sequence.id for o in outcomes if o.drafted and o.sequence.id in self._acceptance)

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        self._acceptance.pop(sequence.id, None)
        self._read.discard(sequence.id)
        self._proposer.forget(sequence)

    def _length(self, acceptance: float, bar: float) -> int:
        """The largest length up to which each further draft pays."""
        if acceptance <= bar:
            return 0
        return self._most if acceptance >= 1 else min(int(log(bar) / log(acceptance)), self._most)
