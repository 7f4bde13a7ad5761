"""Reasons in words: one line of plain ASCII, fit for a response header, naming the difference that decided."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntFlag
from typing import NamedTuple

from policies.roster import Option
from policies.selector import describe_selector
from policies.types import Estimate, LoadView, Objective, Quality, Rejection, RequestFacts

_LONGEST = 200
_LONGEST_NAME = 36
_CANNOT = {
    "down": "is down",
    "breaker": "keeps failing",
    "context": "has too little context",
    "capability": "lacks a capability",
}
_NEAREST = ("precision", "breaker", "down", "context", "capability", "selector")
"""Codes of rejections, from the one that was nearest to serving."""


class Tier(IntFlag):
    """What puts a deployment behind all that lack it; the greater weighs more."""

    LATE = 1
    CUT = 2
    UNMEASURED = 4
    LEFT_ALONE = 8
    MAY_NOT_FIT = 16
    HOSTED = 32


UNREADY = 1000.0
"""Added to the cost of one that is not measured while its model is not loaded: more than any precision's rank."""


class Row(NamedTuple):
    """An admitted deployment; rows sort by tier, cost, order and id, and no two have the same id.

    ``cost`` is in seconds, or for one that is not measured the negative rank of its precision, with the requests in
    flight as ``order``.
    """

    tier: int
    cost: float
    order: int
    id: str
    option: Option
    load: LoadView
    estimate: Estimate | None


def explain(
    facts: RequestFacts, rows: Sequence[Row], head: int, rule: str, rejected: Sequence[Rejection]
) -> tuple[str, str]:
    """Return the rule that decided and the sentence for the chosen row: what set it apart from the next best."""
    chosen = rows[head]
    if rule == "pinned":
        return rule, _line(f"pinned by the caller{_predicted(chosen)}")
    if len(rows) > 1:
        words = _difference(facts.objective, chosen, rows[0] if head else rows[1], rule)
    else:
        words = "" if chosen.option.grade else _only(facts, rejected) + _predicted(chosen)
    if chosen.option.grade:
        rule, best = "best-precision", _best_precision(chosen, rejected)
        words = f"{best}; {words}" if words else best
    return rule, _line(words)


def explain_next(row: Row) -> str:
    """Return the words for a row that is not the first; cheap, since nobody reads them unless the first one fails."""
    if row.tier:
        behind = _behind(row)
        return _line(behind if row.estimate is None else f"{row.estimate.total_s:.2f} s predicted; {behind}")
    return "next in line"


def _best_precision(chosen: Row, rejected: Sequence[Rejection]) -> str:
    """Say that nothing better serves, and name one that would be better but cannot."""
    precision = chosen.option.deployment.precision
    runs = "unknown precision is all" if precision.bits == 0 else f"{precision} is the best"
    for rejection in rejected:
        cannot = _CANNOT.get(rejection.code)
        if cannot and rejection.deployment.precision.bits > precision.bits:
            return f"{runs} that can serve this now ({_short(rejection.deployment.id)} {cannot})"
    return f"{runs} that is up"


def _only(facts: RequestFacts, rejected: Sequence[Rejection]) -> str:
    for code in _NEAREST:
        nearest = next((r for r in rejected if r.code == code), None)
        if nearest is None:
            continue
        if code == "selector":
            return f"only deployment {describe_selector(facts.selector)}"
        more = sum(r.code == code for r in rejected) - 1
        return f"only one that can serve this; {_short(nearest.deployment.id)}: {nearest.reason}" + (
            f" (and {more} more)" if more else ""
        )
    return f"only deployment of {_short(facts.model)}"


def _difference(objective: Objective, chosen: Row, runner: Row, rule: str) -> str:
    name = _short(runner.id)
    if chosen.tier != runner.tier:
        return f"{name} comes later: {_behind(runner, chosen.tier)}"
    if chosen.estimate is None or runner.estimate is None:
        return _unmeasured_difference(chosen, runner)
    if rule == "fastest" and chosen.option.step != runner.option.step and not chosen.option.grade:
        return _precision_difference(objective, chosen, runner)
    if rule == "prefix":
        held = f"holds {chosen.load.cached_tokens} tokens of the prompt"
        return f"{held}: {_total(chosen)} predicted, {name} {_total(runner)} is within the spread"
    if rule in ("last-used", "stable"):
        why = "used last" if rule == "last-used" else "stable by its soak"
        return f"{why}: {_total(chosen)} predicted, {name} {_total(runner)} is within the spread"
    ours, theirs = chosen.estimate, runner.estimate
    note = _busy(runner)
    if chosen.cost == runner.cost:
        return f"as fast as {name} ({_total(chosen)} predicted), first by name"
    if objective is Objective.TTFT:
        a, b = _apart(ours.ttft_s, theirs.ttft_s)
        return f"first token first: {a} predicted, {name} {b}{note}"
    a, b = _apart(ours.total_s, theirs.total_s)
    if ours.total_s < theirs.total_s:
        return f"finishes first: {a} predicted, {name} {b}{note}"
    lost_s, lost_there_s = _delays_s(ours), _delays_s(theirs)
    if lost_s >= lost_there_s:
        return f"best for the turns that will follow: {a} predicted now, {name} {b}"
    lost, lost_there = _apart(lost_s, lost_there_s)
    return f"delays others less: by {lost}, {name} by {lost_there} ({a} and {b} predicted)"


def _delays_s(estimate: Estimate) -> float:
    """What a choice costs those who are there and those who usually come."""
    return estimate.cost_to_others_s + estimate.cost_to_next_s


def _precision_difference(objective: Objective, chosen: Row, runner: Row) -> str:
    """Say why a quantised one serves who asked for no precision, or why it does not."""
    assert chosen.estimate is not None
    assert runner.estimate is not None
    first_token = objective is Objective.TTFT
    ours_s = chosen.estimate.ttft_s if first_token else chosen.estimate.total_s
    theirs_s = runner.estimate.ttft_s if first_token else runner.estimate.total_s
    a, b = _apart(ours_s, theirs_s)
    name, served, other = _short(runner.id), chosen.option.deployment, runner.option.deployment
    if chosen.option.step > runner.option.step:
        quality = "is the baseline" if served.quality is Quality.BASELINE else "passed its quality test"
        faster = f"is {1.0 - ours_s / theirs_s:.0%} faster" if ours_s < theirs_s else "delays others less"
        return f"{served.precision} {quality} and {faster}: {a} predicted, {name} in {other.precision} {b}"
    if ours_s <= theirs_s:
        return f"best precision, {served.precision}, and fastest: {a} predicted, {name} in {other.precision} {b}"
    return (
        f"best precision first, {served.precision}: {a} predicted, {name} in {other.precision} {b}, "
        f"not faster by the margin that {other.precision} needs"
    )


def _unmeasured_difference(chosen: Row, runner: Row) -> str:
    name = _short(runner.id)
    if chosen.cost < 0.0 <= runner.cost:
        return f"nothing is measured yet: ready, while {name} has to load"
    if chosen.cost != runner.cost:
        precision, other = chosen.option.deployment.precision, runner.option.deployment.precision
        return f"nothing is measured yet: best precision {precision}, {name} has {other}"
    if chosen.order != runner.order:
        return f"nothing is measured yet: {chosen.order} in flight, {name} has {runner.order}"
    return f"nothing is measured yet: first by name, before {name}"


def _behind(row: Row, but: int = 0) -> str:
    """Say what puts a row behind, leaving out what it has in common with another."""
    tier = row.tier & ~but
    if tier & Tier.HOSTED:
        return "a hosted API"
    if tier & Tier.MAY_NOT_FIT:
        return f"the prompt may not fit its context of {row.option.context}"
    if tier & Tier.LEFT_ALONE:
        return f"it asked to be left alone for {_seconds(row.load.retry_after_s)}"
    if tier & Tier.UNMEASURED:
        return "not measured yet"
    if tier & Tier.CUT:
        return f"its context of {row.option.context} may cut the answer"
    return "it will probably miss the deadline"


def _busy(row: Row) -> str:
    estimate = row.estimate
    if estimate is not None and estimate.load_s > 0.0:
        return f" (loads {_seconds(estimate.load_s)})"
    ahead = row.load.inflight + row.load.foreign_running + row.load.foreign_waiting
    return f" (busy: {ahead} ahead)" if ahead else ""


def _predicted(row: Row) -> str:
    return f"; {_total(row)} predicted" if row.estimate else " (not measured yet)"


def _total(row: Row) -> str:
    return _seconds(row.estimate.total_s) if row.estimate else "?"


def _seconds(value: float) -> str:
    """Return a duration with about three digits: ``"0.042 s"``, ``"1.35 s"``, ``"13 s"``."""
    if value < 0.1:
        return f"{value:.3f} s"
    return f"{value:.2f} s" if value < 10.0 else f"{value:.0f} s"


def _apart(a: float, b: float) -> tuple[str, str]:
    """Return two durations so that they read differently when they are."""
    first, second = _seconds(a), _seconds(b)
    return (first, second) if first != second else (f"{a:.5g} s", f"{b:.5g} s")


def _short(name: str) -> str:
    """Return a name, its middle left out when it is long."""
    if len(name) <= _LONGEST_NAME:
        return name
    half = (_LONGEST_NAME - 3) // 2
    return f"{name[:half]}...{name[-half:]}"


def _line(text: str) -> str:
    """Return text as one line of printable ASCII, 200 characters at most."""
    if not (text.isascii() and text.isprintable()):
        text = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
