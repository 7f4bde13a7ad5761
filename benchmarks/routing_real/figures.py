"""From what was sent to the figures: how often the choice was right, and how far predictions were off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

from benchmarks.routing_real.client import Sent
from benchmarks.routing_real.phases import Phase, without

NEAR = 0.10
"""A choice within this part of the fastest is a right one: the same request repeated varies by 2 to 8 %."""
CLOSE = 0.15


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of predictions: the median of their sizes, the share within ``CLOSE``, and the median with its
    sign (above 0: predicted too long)."""

    count: int
    median: float
    close: float
    bias: float


def errors(pairs: Iterable[tuple[float, float]]) -> Errors | None:
    """Compare (predicted, actual) seconds; ``None`` when there is nothing to compare."""
    relative = [predicted / actual - 1.0 for predicted, actual in pairs if predicted > 0 and actual > 0]
    if not relative:
        return None
    sizes = [abs(each) for each in relative]
    close = sum(size <= CLOSE for size in sizes) / len(sizes)
    return Errors(len(sizes), median(sizes), close, median(relative))


def total_errors(sent: Iterable[Sent]) -> Errors | None:
    """Compare totals."""
    return errors((each.predicted_total_s, each.total_s) for each in sent)


def ttft_errors(sent: Iterable[Sent]) -> Errors | None:
    """Compare times to the first token."""
    return errors((each.predicted_ttft_s, each.ttft_s) for each in sent)


def repeated(phase: Phase) -> tuple[Errors | None, Errors | None]:
    """Return the errors in total and TTFT of who predicts a request by the very same request, sent to the same engine a
    moment before and after: the median of the others. On a machine whose speed wanders no prediction is better."""
    totals, firsts = [], []
    for case in phase.cases:
        for sents in case.again.values():
            for i, sent in enumerate(sents):
                if others := without(sents, i):
                    totals.append((median(each.total_s for each in others), sent.total_s))
                    firsts.append((median(each.ttft_s for each in others), sent.ttft_s))
    return errors(totals), errors(firsts)


def right(phase: Phase) -> float | None:
    """Return the share of choices that were the fastest, or near it."""
    return mean(case.regret <= NEAR for case in phase.cases) if phase.cases else None


def regret(phase: Phase) -> float | None:
    """Return what the choices cost beyond the best ones, as a part of the latter's sum."""
    best = sum(min(case.costs.values()) for case in phase.cases)
    return sum(case.costs[case.sent.deployment] for case in phase.cases) / best - 1.0 if phase.cases else None


def right_of_one_round(phase: Phase) -> float | None:
    """Return the same share for whoever chooses by one measurement of each candidate, a moment before: on a machine
    whose speed wanders nobody is right more often for long."""
    regrets = [regret for case in phase.cases for regret in case.regrets_of_one_round]
    return mean(each <= NEAR for each in regrets) if regrets else None


def groups(sent: Sequence[Sent]) -> list[tuple[str, list[Sent]]]:
    """Return the requests by deployment, by prompt length, and by kind."""
    lengths = ((0, 64), (64, 256), (256, 640), (640, 1 << 20))
    found = [(name, [s for s in sent if s.deployment == name]) for name in sorted({s.deployment for s in sent})]
    for low, high in lengths:
        name = f"prompt {low} to {high - 1}" if high < 1 << 20 else f"prompt {low} or more"
        found.append((name, [s for s in sent if low <= s.prompt_tokens < high and not s.shape.follow_up]))
    found.append(("follow-ups", [s for s in sent if s.shape.follow_up]))
    found.append(("streamed", [s for s in sent if s.shape.stream]))
    found.append(("not streamed", [s for s in sent if not s.shape.stream]))
    return [(name, members) for name, members in found if members]


def report(phases: Sequence[Phase]) -> list[dict[str, Any]]:
    """Return everything as plain values."""
    return [
        {
            "phase": phase.name,
            "requests": len(phase.sent),
            "disturbed": sum(sent.disturbed for sent in phase.sent),
            "right": right(phase),
            "right_of_one_round": right_of_one_round(phase),
            "regret": regret(phase),
            "total": _plain(total_errors(phase.sent)),
            "ttft": _plain(ttft_errors(phase.sent)),
            "repeated": [_plain(found) for found in repeated(phase)],
            "errors": phase.errors,
            "sent": [asdict(sent) | {"text": None} for sent in phase.sent],
            "cases": [
                {
                    "request": case.sent.shape.number,
                    "chosen": case.sent.deployment,
                    "costs_s": case.costs,
                    "rounds_s": case.rounds,
                    "disturbed": case.disturbed,
                }
                for case in phase.cases
            ],
        }
        for phase in phases
    ]


def _plain(found: Errors | None) -> dict[str, Any] | None:
    return None if found is None else asdict(found)
