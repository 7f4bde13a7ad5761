"""Differences in words: what a reader may conclude, and nothing more."""

from __future__ import annotations

from measure.compare_interval import Change
from measure.compare_metrics import Finding

NOT_SHOWN = "no difference shown"


def verdict(finding: Finding, who: str) -> str:
    """Return what ``finding`` shows about the side ``who``, in per cent of the other side's value.

    "B faster by 12–15 %" where the interval leaves out "no difference", "no difference shown" where it does not, and
    where there is no interval what was seen, without a conclusion.
    """
    change = finding.change
    if change.low is None or change.high is None:
        return f"{percent(change)} seen, too few runs to conclude"
    if not change.shown:
        return NOT_SHOWN
    return f"{who} {_direction(finding)} by {span(change.low, change.high)}"


def percent(change: Change) -> str:
    """Return the change itself: "+12 %"."""
    return f"{_signed(change.ratio)} %"


def interval(change: Change) -> str:
    """Return its interval: "−9 … −4 %", "" where there is none."""
    if change.low is None or change.high is None:
        return ""
    return f"{_signed(change.low)} … {_signed(change.high)} %"


def span(low: float, high: float) -> str:
    """Return how far two ratios on the same side of 1 lie from it: "4–9 %"."""
    near, far = sorted(abs(ratio - 1.0) * 100 for ratio in (low, high))
    digits = 0 if far >= 10 else 1
    shown = [f"{near:.{digits}f}", f"{far:.{digits}f}"]
    return f"{'–'.join(dict.fromkeys(shown))} %"


def _signed(ratio: float) -> str:
    value = (ratio - 1.0) * 100
    digits = 0 if abs(value) >= 10 else 1
    return f"{'−' if value < 0 else '+'}{abs(value):.{digits}f}"


def _direction(finding: Finding) -> str:
    more = finding.change.ratio > 1.0
    if finding.metric.unit == "bytes":
        return "needs more" if more else "needs less"
    return "faster" if more == finding.metric.more_is_better else "slower"
