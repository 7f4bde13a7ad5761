"""From the pairs to a verdict: passed or failed, and why; what is kept of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import msgspec

from measure.quality.measures import Measure, measures_of
from measure.quality.pairs import Pair
from measure.quality.worst import WorstPair
from policies.types import Deployment, Precision, Quality

LEAST_PAIRS = 30
"""With fewer prompts that both have answered there is no verdict."""
UNANSWERED_SHARE = 0.05
"""When a candidate leaves more of the prompts unanswered, the others say too little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How many of a category's prompts were answered well, by the baseline and by the candidate."""

    category: str
    prompts: int
    baseline: int
    candidate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """How alike the answers are, over all prompts, for people: shares of words, and of repeated 4-word sequences."""

    identical: float
    prefix: float
    edit: float
    repetition_baseline: float
    repetition_candidate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What a candidate was compared with."""

    deployment: str
    fingerprint: str
    precision: Precision
    scheme: str = ""

    @property
    def told(self) -> str:
        """For a person: ``f16 (fp16)``."""
        return f"{self.deployment} ({f'{self.precision} {self.scheme}'.strip()})"


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityVerdict:
    """The outcome of one regression, as it is kept by fingerprint.

    ``why`` is one sentence for a person. ``at`` is the date in ISO 8601, UTC; ``suite`` the suite's version, with the
    digest of the user's own samples where there were some. ``notes`` are what else should be known.
    """

    quality: Quality
    why: str
    at: str
    suite: str
    paceline: str
    deployment: str
    baseline: Baseline
    prompts: int = 0
    unanswered: int = 0
    measures: tuple[Measure, ...] = ()
    scores: tuple[Score, ...] = ()
    means: Means | None = None
    notes: tuple[str, ...] = ()
    worst: tuple[WorstPair, ...] = ()
    """The pairs that a person should look at first."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values only, as JSON has them."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain


def judge(pairs: Sequence[Pair], unanswered: int) -> tuple[Quality, str]:
    """Return the verdict on a candidate and the reason, in one sentence; ``unanswered`` prompts it did not answer.

    ``Quality.UNTESTED`` when there are too few pairs to say anything: a missing answer is no matter of quality.
    """
    asked = len(pairs) + unanswered
    if asked and unanswered > UNANSWERED_SHARE * asked:
        return Quality.UNTESTED, f"gave no answer to {unanswered} of {asked} prompts"
    if len(pairs) < LEAST_PAIRS:
        return Quality.UNTESTED, f"only {len(pairs)} prompts were answered by both, {LEAST_PAIRS} are needed"
    measures = measures_of(pairs)
    beyond = sorted((measure for measure in measures if not measure.passed), key=lambda measure: not measure.shown)
    if beyond:
        return Quality.FAILED, "; ".join(map(_reason, beyond))
    return Quality.PASSED, f"no harm beyond what is tolerated, in any of {len(measures)} measures"


def scores_of(pairs: Sequence[Pair]) -> tuple[Score, ...]:
    """Return the scores by category, in the order of the prompts."""
    categories = dict.fromkeys(pair.prompt.category for pair in pairs)
    return tuple(_score(name, [pair for pair in pairs if pair.prompt.category == name]) for name in categories)


def means_of(pairs: Sequence[Pair]) -> Means | None:
    """Return how alike the answers are; ``None`` without any."""
    if not pairs:
        return None
    return Means(
        identical=fmean(not pair.diverged for pair in pairs),
        prefix=fmean(pair.prefix_share for pair in pairs),
        edit=fmean(pair.edit_share for pair in pairs),
        repetition_baseline=fmean(pair.repetitions[0] for pair in pairs),
        repetition_candidate=fmean(pair.repetitions[1] for pair in pairs),
    )


def notes_of(pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Return what makes the two differ for another reason than their weights."""
    counted = [
        (pair.baseline.prompt_tokens, pair.candidate.prompt_tokens)
        for pair in pairs
        if pair.baseline.prompt_tokens and pair.candidate.prompt_tokens
    ]
    other = sum(one != two for one, two in counted)
    if other * 2 <= len(counted):
        return ()
    return (
        "the two read prompts of other lengths: their chat templates or vocabularies differ, which alone can fail it",
    )


def baseline_of(deployment: Deployment) -> Baseline:
    """Return a deployment as what others are compared with."""
    return Baseline(
        deployment=deployment.id,
        fingerprint=deployment.fingerprint,
        precision=deployment.precision,
        scheme=deployment.scheme,
    )


def _score(category: str, pairs: Sequence[Pair]) -> Score:
    return Score(
        category=category,
        prompts=len(pairs),
        baseline=sum(not pair.baseline_problems for pair in pairs),
        candidate=sum(not pair.candidate_problems for pair in pairs),
    )


def _reason(measure: Measure) -> str:
    if measure.shown:
        found = measure.tell(measure.value)
    else:
        found = f"{measure.tell(measure.low)} to {measure.tell(measure.high)} cannot be ruled out"
    return f"{measure.title}: {found}, tolerated is {measure.limit}"
