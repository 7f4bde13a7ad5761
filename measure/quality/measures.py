"""What is measured of the pairs, and how much of each is tolerated. Pure.

Each measure is a difference between candidate and baseline on the same prompts, with its interval. A deployment passes
when no interval reaches beyond what is tolerated: then more harm than that can be ruled out. Raw scores decide nothing,
since a small model fails most prompts in every precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from measure.quality.intervals import Interval, mean, paired_difference, ratio_of_sums
from measure.quality.pairs import Pair

LIKELIHOOD_NATS = 0.05
AGREEMENT_SHARE = 0.10
ANSWERS_SHARE = 0.10
LOOPS_SHARE = 0.10
LENGTH_FACTOR = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One measure with its interval and what is tolerated.

    ``tolerated_low`` is ``None`` where only an increase is harm. ``unit`` says how numbers are told: ``nats``,
    ``share`` or ``factor``.
    """

    name: str
    unit: str
    value: float
    low: float
    high: float
    tolerated: float
    tolerated_low: float | None = None

    @property
    def passed(self) -> bool:
        """Whether more than the tolerated is ruled out."""
        return self.high <= self.tolerated and (self.tolerated_low is None or self.low >= self.tolerated_low)

    @property
    def shown(self) -> bool:
        """Whether more than the tolerated is not only possible, but what the prompts show."""
        return self.value > self.tolerated or (self.tolerated_low is not None and self.value < self.tolerated_low)

    @property
    def title(self) -> str:
        """What it is, for a table."""
        return TITLES[self.name]

    @property
    def limit(self) -> str:
        """What is tolerated, in words."""
        most = self.tell(self.tolerated)
        return f"at most {most}" if self.tolerated_low is None else f"{self.tell(self.tolerated_low)} to {most}"

    def tell(self, value: float) -> str:
        """Return a value of this measure in its unit."""
        if self.unit == "share":
            return f"{value:.1%}"
        return f"×{value:.2f}" if self.unit == "factor" else f"{value:.4f} nats"


TITLES = {
    "likelihood": "log-probability lost per token",
    "agreement": "words that differ behind the same text",
    "answers": "good answers lost, less those gained",
    "loops": "answers that became loops, less those that no longer are",
    "length": "length of the answers",
}


def measures_of(pairs: Sequence[Pair]) -> tuple[Measure, ...]:
    """Return all measures that can be taken: without log-probabilities no ``likelihood``. At least one pair."""
    taken = (take(pairs) for take in (_likelihood, _agreement, _answers, _loops, _length))
    return tuple(measure for measure in taken if measure is not None)


def _likelihood(pairs: Sequence[Pair]) -> Measure | None:
    """Of the tokens that the baseline wrote, behind the same text: its log-probability less the candidate's.

    That is robust where greedy texts are not: two tokens that are as likely can change places without any loss.
    """
    parts = [(shared.loss, float(shared.places)) for pair in pairs if (shared := pair.shared) is not None]
    if not parts:
        return None
    return _measure("likelihood", "nats", ratio_of_sums(parts), LIKELIHOOD_NATS)


def _agreement(pairs: Sequence[Pair]) -> Measure:
    """The chance that the next word is another one, given the same text so far: it does not depend on the length."""
    parts = [(float(pair.diverged), float(pair.same_words + pair.diverged)) for pair in pairs]
    if not any(words for _, words in parts):  # all answers are empty
        return _measure("agreement", "share", Interval(0.0, 0.0, 0.0), AGREEMENT_SHARE)
    return _measure("agreement", "share", ratio_of_sums(parts), AGREEMENT_SHARE)


def _answers(pairs: Sequence[Pair]) -> Measure:
    return _difference("answers", pairs, lambda pair: (bool(pair.baseline_problems), bool(pair.candidate_problems)))


def _loops(pairs: Sequence[Pair]) -> Measure:
    return _difference("loops", pairs, lambda pair: pair.loops)


def _length(pairs: Sequence[Pair]) -> Measure:
    """The geometric mean of the ratios; one word more on both sides, so that there is one for empty answers."""
    found = mean([math.log((pair.lengths[1] + 1) / (pair.lengths[0] + 1)) for pair in pairs])
    factor = Interval(math.exp(found.value), math.exp(found.low), math.exp(found.high))
    return _measure("length", "factor", factor, LENGTH_FACTOR, 1 / LENGTH_FACTOR)


def _difference(name: str, pairs: Sequence[Pair], faulty: Callable[[Pair], tuple[bool, bool]]) -> Measure:
    found = [faulty(pair) for pair in pairs]
    lost, gained = found.count((False, True)), found.count((True, False))
    tolerated = ANSWERS_SHARE if name == "answers" else LOOPS_SHARE
    return _measure(name, "share", paired_difference(lost, gained, len(pairs)), tolerated)


def _measure(name: str, unit: str, found: Interval, tolerated: float, tolerated_low: float | None = None) -> Measure:
    return Measure(
        name=name,
        unit=unit,
        value=found.value,
        low=found.low,
        high=found.high,
        tolerated=tolerated,
        tolerated_low=tolerated_low,
    )
