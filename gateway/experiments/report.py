"""What can be said of an experiment now: numbers, intervals, a verdict or why there is none, and what is wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gateway.experiments.running import Running
from gateway.experiments.variables import variables
from gateway.fleet import Fleet
from policies.experiment import Kind, Sticky
from policies.experiment_evidence import Comparison
from policies.experiment_metrics import METRICS, Scale
from policies.experiment_shares import is_unbalanced

UNBALANCED = (
    "traffic is not split as it was meant: something other than the draw decides who is counted in which arm, so that "
    "the differences may be its doing"
)
SHADOWED = "copies run only while nobody's request does: their times are flattered, their errors and answers are not"
SHARED_HARDWARE = "the arms share hardware, so that each is slowed by the other's requests"


def summary(running: Running) -> dict[str, Any]:
    """Return one line of the list."""
    experiment, state = running.experiment, running.state
    return {
        "name": experiment.name,
        "model": experiment.model,
        "kind": experiment.kind.value,
        "runs": running.runs,
        "ended": state.ended,
        "share": state.share,
        "next_share": running.next_share() if running.runs else None,
        "began_at": state.began_at,
        "requests": sum(seen.requests for stage in running.evidence.stages for seen in stage.seen),
        "declared": state.declared,
    }


def report(running: Running, fleet: Fleet, left_out: int) -> dict[str, Any]:
    """Return everything. ``left_out`` is how many copies for shadows found no room."""
    experiment, evidence = running.experiment, running.evidence
    comparisons = [
        _against(running, place, arm.name, fleet) for place, arm in enumerate(experiment.arms) if place
    ]  # fmt: skip
    warnings = []
    if experiment.kind is not Kind.SHADOW and is_unbalanced(evidence.imbalance()):
        warnings.append(UNBALANCED)
    if experiment.kind is Kind.SHADOW:
        warnings.append(SHADOWED)
        if left_out:
            warnings.append(f"{left_out} copies found no room")
    elif _shares_hardware(running, fleet):
        warnings.append(SHARED_HARDWARE)
    if evidence.uncounted:
        warnings.append(f"{evidence.uncounted} requests of further units were served and not counted")
    return {
        **summary(running),
        "metric": experiment.metric,
        "smallest": experiment.smallest,
        "sticky": experiment.sticky.value,
        "stage": evidence.stage + 1,
        "arms": [_arm(running, place) for place in range(len(experiment.arms))],
        "comparisons": comparisons,
        "warnings": warnings,
        "notes": [{"at": note.at, "text": note.text} for note in running.state.notes],
    }


def _arm(running: Running, place: int) -> dict[str, Any]:
    arm = running.experiment.arms[place]
    stop = next((asdict(each) for each in running.state.stops if each.arm == place), None)
    seen = [stage.seen[place] for stage in running.evidence.stages]
    return {
        "name": arm.name,
        "deployments": sorted(running.arms[place]),
        "weight": running.weights[place] if running.runs else 0.0,
        "stopped": stop is not None,
        "stop": stop,
        "requests": sum(each.requests for each in seen),
        "exposed": sum(each.exposed for each in seen),
        "unit": "request" if running.experiment.sticky is Sticky.REQUEST else running.experiment.sticky.value,
    }


def _against(running: Running, place: int, name: str, fleet: Fleet) -> dict[str, Any]:
    compared = running.evidence.compare(place)
    differ = _differences(running, place, fleet)
    return {
        "arm": name,
        "against": running.experiment.arms[0].name,
        "differ": differ,
        "metrics": [_told(each) for each in compared],
        "guardrails": [asdict(each) for each in running.evidence.promises(place)] if running.runs else [],
        "verdict": _verdict(running, name, compared, differ),
    }


def _differences(running: Running, place: int, fleet: Fleet) -> list[str]:
    first, second = (
        [each for each in fleet.deployments_of(running.experiment.model) if each.id in running.arms[arm]]
        for arm in (0, place)
    )
    if not first or not second:
        return []
    return [str(each) for each in variables(first, second)]


def _told(each: Comparison) -> dict[str, Any]:
    """A comparison with its difference as people say it: relative for ratios, absolute for shares and scores."""
    difference = each.difference
    is_ratio = METRICS[each.metric].scale is Scale.RATIO
    return {
        "metric": each.metric,
        "unit": METRICS[each.metric].unit,
        "counts": each.counts,
        "values": [round(value, 6) if n else None for value, n in zip(each.values, each.counts, strict=True)],
        "scale": METRICS[each.metric].scale.value,
        "difference": _as_said(difference.value, is_ratio) if all(each.counts) else None,
        "low": _as_said(difference.low, is_ratio),
        "high": _as_said(difference.high, is_ratio),
        "shown": difference.shown,
        "more": each.more,
    }


def _as_said(value: float, is_ratio: bool) -> float | None:
    if math.isinf(value):
        return None
    return round(math.expm1(value) if is_ratio else value, 4)


def _verdict(running: Running, name: str, compared: Sequence[Comparison], differ: Sequence[str]) -> dict[str, Any]:
    """What may be said of the metric that the experiment is about: ``outcome`` is ``better``, ``worse``, ``differs``,
    ``nothing`` or ``refused``."""
    experiment = running.experiment
    first = experiment.arms[0].name
    metric = next((each for each in compared if each.metric == experiment.metric), None)
    if len(differ) > 1:
        told = "; ".join(differ)
        text = f"no verdict: {name} and {first} differ in more than one variable ({told})"
        return {"outcome": "refused", "text": text}
    if metric is None or math.isinf(metric.difference.low):
        return {"outcome": "nothing", "text": f"nothing shown yet: too few answers with a {experiment.metric}"}
    interval = _interval(metric)
    shown = metric.difference.shown
    if not shown:
        more = ""
        if metric.more:
            more = f"; about {metric.more:,} more requests would show a difference of {experiment.smallest:.0%}"
        elif metric.more == 0:
            more = f"; a difference of {experiment.smallest:.0%} would show by now"
        return {"outcome": "nothing", "text": f"nothing shown yet: {experiment.metric} {interval}{more}"}
    better = METRICS[experiment.metric].better * shown
    outcome = "better" if better > 0 else "worse" if better < 0 else "differs"
    verb = {"better": "is better than", "worse": "is worse than", "differs": "differs from"}[outcome]
    return {"outcome": outcome, "text": f"{name} {verb} {first}: {experiment.metric} {interval}"}


def _interval(each: Comparison) -> str:
    is_ratio = METRICS[each.metric].scale is Scale.RATIO
    is_mean = METRICS[each.metric].scale is Scale.MEAN
    value, low, high = (math.expm1(v) if is_ratio else v for v in each.difference)
    if is_mean:
        return f"{value:+.2f} ({low:+.2f} to {high:+.2f})"
    unit = "%" if is_ratio else " points"
    return f"{value * 100:+.1f}{unit} ({low * 100:+.1f} to {high * 100:+.1f})"


def _shares_hardware(running: Running, fleet: Fleet) -> bool:
    of_model = fleet.deployments_of(running.experiment.model)
    first, *others = ([each for each in of_model if each.id in arm] for arm in running.arms)
    return any(a.hardware.shares(b.hardware) for a in first for other in others for b in other)
