"""Differences in words: what a reader may conclude, and nothing more."""

from __future__ import annotations

from measure.compare_interval import Change
from measure.compare_metrics import Finding

NOT_SHOWN = "no difference shown"
_WORDS = (("faster", "slower"), ("smaller", "larger"))
"""Better and worse: of a speed, and of an amount of memory."""


def verdict(finding: Finding, who: str) -> str:
    """Return what ``finding`` shows about the side ``who``, in per cent of the other side's value.

    "B faster by 12–15 %" where the interval leaves out "no difference", "no difference shown" where it does not, and
    where there is no interval what was seen, without a conclusion. Over several cells, those that show the contrary are
    counted as well; and what else may explain a difference is said with it.
    """
    change = finding.change
    if change.low is None or change.high is None:
        of = "runs" if finding.metric.of_run else "records"
        return f"{'no difference' if change.ratio == 1.0 else percent(change)} seen, too few {of} to conclude"
    better, worse = _WORDS[finding.metric.unit == "bytes"]
    if not change.shown:
        cells = [f"{word} in {n}" for word, n in ((better, finding.better), (worse, finding.worse)) if n]
        return f"{NOT_SHOWN} over all; {who} {', '.join(cells)} of {finding.cells} cells" if cells else NOT_SHOWN
    gained = (change.ratio > 1.0) == finding.metric.more_is_better
    word, contrary, against = (better, worse, finding.worse) if gained else (worse, better, finding.better)
    told = f"{who} {word} by {span(change.low, change.high)}"
    told += f", {contrary} in {against} of {finding.cells} cells" if against else ""
    return f"{told} ({finding.doubt})" if finding.doubt else told


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
