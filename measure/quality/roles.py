"""Who is tested, and against whom. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from policies.types import Capability, Deployment, Precision

SIXTEEN_BITS = 16


@dataclass(frozen=True, slots=True)
class Roles:
    """One model's baseline and the candidates that are compared with it."""

    baseline: Deployment
    candidates: tuple[Deployment, ...]


def roles(
    deployments: Sequence[Deployment], chosen: Iterable[Deployment], *, named: Collection[str] = (), baseline: str = ""
) -> list[Roles]:
    """Return who is tested of the ``chosen``, model by model; models with nobody to test are left out.

    Candidates are the quantised ones and those of unknown precision: 16 bits and better serve without a test, and are
    tested only where ``named`` has their id. The baseline is the one with the id ``baseline``, else the best precision
    that there is; among equals one that gives log-probabilities, on an engine of the candidates' kind.
    """
    by_model: dict[str, list[Deployment]] = {}
    for each in chosen:
        if Capability.CHAT in each.capabilities and (is_quantised(each) or each.id in named):
            by_model.setdefault(each.model, []).append(each)
    found = []
    for model, candidates in by_model.items():
        able = [each for each in deployments if each.model == model and Capability.CHAT in each.capabilities]
        best = next((each for each in able if each.id == baseline), None) or _best(able, candidates)
        rest = tuple(each for each in candidates if each.id != best.id)
        if rest:
            found.append(Roles(best, rest))
    return found


def is_quantised(deployment: Deployment) -> bool:
    """Whether it needs to pass before it serves those who asked for no precision."""
    return not deployment.hosted and deployment.precision.bits < SIXTEEN_BITS


def as_good(one: Precision, other: Precision) -> bool:
    """Whether ``one`` will do for a baseline where ``other`` could be one: from 16 bits on, all will."""
    return min(one.bits, SIXTEEN_BITS) >= min(other.bits, SIXTEEN_BITS)


def _best(able: Sequence[Deployment], candidates: Sequence[Deployment]) -> Deployment:
    kinds = [each.engine for each in candidates]
    return max(
        able,
        key=lambda each: (
            not each.hosted,
            each.precision.rank,
            Capability.LOGPROBS in each.capabilities,
            kinds.count(each.engine),
            each.context or 0,
            each.id,
        ),
    )
