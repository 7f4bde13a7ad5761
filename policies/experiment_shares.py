"""Differences of shares (errors, faults of form) and the test of the split itself: exact, and valid at all times.

Shares: under the truth, the ratio of the mixture likelihood (Beta(½, ½) for each arm; Robbins 1970) to the likelihood
is a martingale, so that it ever exceeds 1/α with a probability of α at most (Ville). A difference for which even the
best pair of shares has a smaller likelihood than that is refuted (L. Wasserman, A. Ramdas and S. Balakrishnan,
"Universal inference", 2020). It needs no minimum of observations, and strata multiply: each may have other shares.

Split: M. Lindon and A. Malek, "Anytime-valid inference for multinomial count data" (2022): the Dirichlet mixture over
all splits against the one that was meant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from policies.experiment_intervals import Difference

UNBALANCED_AT = 0.001
"""The chance with which a split that is as it was meant is called unbalanced, ever."""
_STEPS = 20
"""How often a range is halved: a millionth is near enough for a share."""
_LEAST = 1e-9
_CONCENTRATION = 100.0
"""How near to the split that was meant another one is expected: as if so many had been seen."""


@dataclass(slots=True)
class Tally:
    """How many were seen, and how many of them were bad."""

    n: int = 0
    bad: int = 0

    def add(self, *, bad: bool) -> None:
        """Take one in."""
        self.n += 1
        self.bad += bad

    @property
    def share(self) -> float:
        """The share of the bad; 0 when none was seen."""
        return self.bad / self.n if self.n else 0.0


def log_evidence(strata: Iterable[tuple[Tally, Tally]], difference: float) -> float:
    """Return the natural logarithm of the evidence against this difference, second minus first."""
    return sum(
        _log_mixture(first) + _log_mixture(second) - _log_best(first, second, difference) for first, second in strata
    )


def is_worse_by(strata: Iterable[tuple[Tally, Tally]], margin: float, alpha: float) -> bool:
    """Return whether the second share is certainly more than ``margin`` above the first."""
    strata = tuple(strata)
    n = sum(second.n for _, second in strata)
    if not n or _estimate(strata) <= margin:
        return False
    return log_evidence(strata, margin) >= math.log(1.0 / alpha)


def difference(strata: Iterable[tuple[Tally, Tally]], alpha: float) -> Difference:
    """Return the difference of the shares, and the differences that are not refuted."""
    strata = tuple(strata)
    value = _estimate(strata)
    limit = math.log(1.0 / alpha)
    return Difference(value, _edge(strata, value, -1.0, limit), _edge(strata, value, 1.0, limit))


def _estimate(strata: Sequence[tuple[Tally, Tally]]) -> float:
    """The differences of the strata, each weighted by how many there were to compare."""
    total = value = 0.0
    for first, second in strata:
        if first.n and second.n:
            weight = first.n * second.n / (first.n + second.n)
            total += weight
            value += weight * (second.share - first.share)
    return value / total if total else 0.0


def _edge(strata: Sequence[tuple[Tally, Tally]], inside: float, outside: float, limit: float) -> float:
    """The last difference between ``inside`` and ``outside`` that is not refuted, by halving."""
    if log_evidence(strata, outside) < limit:
        return outside
    for _ in range(_STEPS):
        middle = (inside + outside) / 2.0
        if log_evidence(strata, middle) < limit:
            inside = middle
        else:
            outside = middle
    return outside


def _log_mixture(tally: Tally) -> float:
    good = tally.n - tally.bad
    return math.lgamma(tally.bad + 0.5) + math.lgamma(good + 0.5) - math.lgamma(tally.n + 1.0) - math.log(math.pi)


def _log_best(first: Tally, second: Tally, difference: float) -> float:
    """The highest log likelihood of two shares that differ so: it is concave, its slope is halved to nothing."""
    low, high = max(0.0, -difference), min(1.0, 1.0 - difference)

    def slope(share: float) -> float:
        return _slope(first, share) + _slope(second, share + difference)

    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if slope(middle) > 0.0 else (low, middle)
    middle = (low + high) / 2.0
    return _log_likelihood(first, middle) + _log_likelihood(second, middle + difference)


def _inside(share: float) -> float:
    return min(1.0 - _LEAST, max(_LEAST, share))


def _slope(tally: Tally, share: float) -> float:
    share = _inside(share)
    return tally.bad / share - (tally.n - tally.bad) / (1.0 - share)


def _log_likelihood(tally: Tally, share: float) -> float:
    share = _inside(share)
    return tally.bad * math.log(share) + (tally.n - tally.bad) * math.log1p(-share)


def log_imbalance(counts: Sequence[int], shares: Sequence[float]) -> float:
    """Return the natural logarithm of the evidence against a split by ``shares``; those of 0 are left out.

    It may be added up over strata.
    """
    pairs = [(count, share) for count, share in zip(counts, shares, strict=True) if share > 0.0]
    total = sum(count for count, _ in pairs)
    whole = sum(share for _, share in pairs)
    log = math.lgamma(_CONCENTRATION) - math.lgamma(_CONCENTRATION + total)
    for count, share in pairs:
        prior = _CONCENTRATION * share / whole
        log += math.lgamma(prior + count) - math.lgamma(prior) - count * math.log(share / whole)
    return log


def is_unbalanced(log: float) -> bool:
    """Return whether the evidence against the split is enough to say so (``UNBALANCED_AT``)."""
    return log >= math.log(1.0 / UNBALANCED_AT)
