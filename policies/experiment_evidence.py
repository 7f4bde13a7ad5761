"""What an experiment has seen, in sums: bounded, and the same work for each request however many there were.

Where each request is drawn anew, all stages count together, each compared within itself. Where units (keys, users) are
kept to an arm, a unit is one observation, the mean of its requests, since a user's requests are alike; and only the
present stage counts, since the same users are in the next one: the k-th may be wrong with a chance of α / (k (k + 1)).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from policies import experiment_guardrails as guardrails
from policies import experiment_intervals as intervals
from policies import experiment_shares as shares
from policies.experiment import Experiment, Kind, Sticky
from policies.experiment_guardrails import Complaint, Guardrail, Promise
from policies.experiment_intervals import FEWEST, Difference, Moments
from policies.experiment_metrics import METRICS, Outcome, Scale
from policies.experiment_shares import Tally

ALPHA = 0.05
"""The chance that anything wrong is ever said of arms that are alike: half for the verdict, half for the guardrails."""
MOST_UNITS = 20_000
"""Units of a stage that are known apart; further ones are served and not counted."""
Units = dict[tuple[int, str], dict[str, tuple[int, float]]]
"""By arm and unit, and by metric: number of requests and their mean."""
_GUARDED = 3
_SMOOTH = 0.5


@dataclass(slots=True)
class Seen:
    """One arm in one stage. ``exposed`` are requests, or units, that were sent there."""

    exposed: int = 0
    requests: int = 0
    means: dict[str, Moments] = field(default_factory=dict)
    tallies: dict[str, Tally] = field(default_factory=dict)

    def mean(self, metric: str) -> Moments:
        """Return the moments of a metric, empty ones where there are none yet."""
        found = self.means.get(metric)
        if found is None:
            found = self.means[metric] = Moments()
        return found

    def tally(self, metric: str) -> Tally:
        """Return the tally of a share, an empty one where there is none yet."""
        found = self.tallies.get(metric)
        if found is None:
            found = self.tallies[metric] = Tally()
        return found


@dataclass(slots=True)
class Stage:
    """A time during which the weights stayed as they are."""

    shares: tuple[float, ...]
    seen: list[Seen]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric of an arm beside the first arm's. ``value`` is the metric itself in each.

    The difference is a logarithm for ratios. ``more`` is about how many further requests it would take, both arms
    together, until a difference of ``Experiment.smallest`` would show; 0 when it would by now, ``None`` when that
    cannot be told yet.
    """

    metric: str
    counts: tuple[int, int]
    values: tuple[float, float]
    difference: Difference
    more: int | None


class Evidence:
    """The sums of one experiment. ``begin`` has to be called before anything is added."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._by_unit = experiment.sticky is not Sticky.REQUEST
        self.stages: list[Stage] = []
        self.units: Units = {}
        self.uncounted = 0
        """Requests of units that there was no more room for."""

    def begin(self, weights: tuple[float, ...]) -> None:
        """The weights are others from now on."""
        self.stages.append(Stage(weights, [Seen() for _ in self._experiment.arms]))
        self.units.clear()

    def restore(self, stages: list[Stage], units: Units, uncounted: int) -> None:
        """Go on with sums that were kept: those of the present stages and of those before."""
        for place, stage in enumerate(stages[: len(self.stages)]):
            self.stages[place] = stage
        if len(stages) == len(self.stages):
            self.units = units
        self.uncounted = uncounted

    @property
    def stage(self) -> int:
        """The place of the present stage."""
        return len(self.stages) - 1

    def expose(self, arm: int, unit: str) -> None:
        """A request was sent to an arm, in the present stage."""
        seen = self.stages[-1].seen[arm]
        seen.requests += 1
        if not self._by_unit:
            seen.exposed += 1
        elif (arm, unit) not in self.units:
            if len(self.units) >= MOST_UNITS:
                self.uncounted += 1
                return
            self.units[arm, unit] = {}
            seen.exposed += 1

    def add(self, outcome: Outcome) -> None:
        """A request has ended."""
        self.note(outcome.stage, outcome.arm, outcome.unit, outcome.values())

    def note(self, stage: int, arm: int, unit: str, values: Mapping[str, float]) -> None:
        """Take in what a request of some stage has shown, at its end or later: ``faults`` (0 or 1), ``score``."""
        seen = self.stages[stage].seen[arm]
        known = self.units.get((arm, unit)) if self._by_unit and stage == self.stage else None
        for metric, value in values.items():
            if METRICS[metric].scale is Scale.SHARE:
                seen.tally(metric).add(bad=value > 0.0)
                if not self._by_unit:
                    continue
            if not self._by_unit:
                seen.mean(metric).add(value)
            elif known is not None:
                _renew(seen.mean(metric), known, metric, value)

    def compare(self, arm: int) -> list[Comparison]:
        """Return all metrics of an arm beside the first one's, as far as they have been seen."""
        seen = [stage.seen[place] for stage in self._counted() for place in (0, arm)]
        known = {metric for each in seen for metric in (*each.means, *each.tallies)}
        return [self._compare(arm, metric) for metric in METRICS if metric in known]

    def difference(self, arm: int, metric: str, alpha: float) -> Difference:
        """Return how a metric of an arm differs from the first one's."""
        if self._is_share(metric):
            return shares.difference(self._tallies(arm, metric), alpha)
        return intervals.difference(self._moments(arm, metric), alpha)

    def verdict_alpha(self) -> float:
        """The chance of a wrong verdict on one arm at this stage."""
        return ALPHA / 2 / (len(self._experiment.arms) - 1) / self._looks()

    def complaint(self, arm: int) -> Complaint | None:
        """Return what is certainly worse in an arm than its guardrails allow, ``None`` when nothing is."""
        if arm == 0:
            return None
        alpha = self.verdict_alpha() / _GUARDED
        for guardrail, margin, what in self._guarded_shares():
            tallies = self._tallies(arm, guardrail)
            if shares.is_worse_by(tallies, margin, alpha):
                first, second = (sum(pair[place].bad for pair in tallies) for place in (0, 1))
                of = [sum(pair[place].n for pair in tallies) for place in (0, 1)]
                text = f"{second} {what} in {of[1]} requests, {first} in {of[0]} of the first arm"
                return Complaint(guardrail, text)
        slower = intervals.difference(self._moments(arm, Guardrail.TTFT), alpha)
        if slower.low > math.log(self._experiment.guardrails.ttft):
            return Complaint(Guardrail.TTFT, f"its TTFT is {math.exp(slower.value):.2f} times the first arm's")
        return None

    def promises(self, arm: int) -> list[Promise]:
        """Return within how many requests the guardrails stop an arm that is much worse, at the present split.

        Where units are kept to an arm, those of the TTFT are units. They are computed for an experiment that begins
        now, with the errors, faults and spread of the TTFT that the first arm has shown.
        """
        alpha = self.verdict_alpha() / _GUARDED
        weights = self.stages[-1].shares
        split = (1.0 if self._experiment.kind is Kind.SHADOW else weights[0], weights[arm])
        promises = []
        for guardrail, margin, _ in self._guarded_shares():
            first = _pooled(self._tallies(arm, guardrail), 0)
            looked_at = self._experiment.checked if guardrail is Guardrail.FAULTS else 1.0
            promises += guardrails.of_share(guardrail, margin, first, split, alpha, looked_at)
        shown = [pair[0] for pair in self._moments(arm, Guardrail.TTFT) if pair[0].n >= FEWEST]
        degrees = sum(each.n - 1 for each in shown)
        variance = sum(each.squares for each in shown) / degrees if degrees else math.inf
        return promises + guardrails.of_ttft(self._experiment.guardrails.ttft, variance, split, alpha)

    def judged(self, arm: int) -> int:
        """Return how many requests the present judgement of an arm is made from, those of the first arm included."""
        return sum(tally.n for pair in self._tallies(arm, Guardrail.ERRORS) for tally in pair)

    def imbalance(self) -> float:
        """Return the natural logarithm of the evidence that traffic is not split as it was meant."""
        counted = self._counted()
        return sum(shares.log_imbalance([seen.exposed for seen in stage.seen], stage.shares) for stage in counted)

    # --- what is compared with what

    def _guarded_shares(self) -> tuple[tuple[Guardrail, float, str], ...]:
        rails = self._experiment.guardrails
        return (Guardrail.ERRORS, rails.errors, "errors"), (Guardrail.FAULTS, rails.faults, "faults of form")

    def _looks(self) -> float:
        stage = len(self.stages)
        return float(stage * (stage + 1)) if self._by_unit else 1.0

    def _counted(self) -> Sequence[Stage]:
        return self.stages[-1:] if self._by_unit else self.stages

    def _is_share(self, metric: str) -> bool:
        return METRICS[metric].scale is Scale.SHARE and not self._by_unit

    def _tallies(self, arm: int, metric: str) -> list[tuple[Tally, Tally]]:
        return [(stage.seen[0].tally(metric), stage.seen[arm].tally(metric)) for stage in self._counted()]

    def _moments(self, arm: int, metric: str) -> list[tuple[Moments, Moments]]:
        return [(stage.seen[0].mean(metric), stage.seen[arm].mean(metric)) for stage in self._counted()]

    def _compare(self, arm: int, metric: str) -> Comparison:
        alpha = self.verdict_alpha()
        if self._is_share(metric):
            tallies = self._tallies(arm, metric)
            n0, n1 = (sum(pair[place].n for pair in tallies) for place in (0, 1))
            values = _pooled(tallies, 0), _pooled(tallies, 1)
            known = _share_information(tallies)
        else:
            moments = self._moments(arm, metric)
            n0, n1 = (sum(pair[place].n for pair in moments) for place in (0, 1))
            values = _pooled_mean(moments, 0), _pooled_mean(moments, 1)
            known = sum(intervals.information(*pair) for pair in moments)
        smallest = self._experiment.smallest
        effect = math.log1p(smallest) if METRICS[metric].scale is Scale.RATIO else smallest
        times = intervals.times_more(known, effect, alpha)
        more = None if math.isinf(times) else math.ceil((n0 + n1) * (times - 1.0))
        if METRICS[metric].scale is Scale.RATIO:
            values = math.exp(values[0]), math.exp(values[1])
        return Comparison(metric, (n0, n1), values, self.difference(arm, metric, alpha), more)


def _renew(moments: Moments, known: dict[str, tuple[int, float]], metric: str, value: float) -> None:
    """A unit's mean has moved by one more request."""
    n, mean = known.get(metric, (0, 0.0))
    renewed = mean + (value - mean) / (n + 1)
    known[metric] = n + 1, renewed
    if n:
        moments.replace(mean, renewed)
    else:
        moments.add(renewed)


def _pooled(tallies: Iterable[tuple[Tally, Tally]], place: int) -> float:
    n = bad = 0
    for pair in tallies:
        n += pair[place].n
        bad += pair[place].bad
    return bad / n if n else 0.0


def _pooled_mean(moments: Iterable[tuple[Moments, Moments]], place: int) -> float:
    n, total = 0, 0.0
    for pair in moments:
        n += pair[place].n
        total += pair[place].n * pair[place].mean
    return total / n if n else 0.0


def _share_information(tallies: Iterable[tuple[Tally, Tally]]) -> float:
    """1/V as for means, with half a bad and half a good one added: with no bad one at all V is not nothing."""
    known = 0.0
    for first, second in tallies:
        if first.n and second.n:
            variance = 0.0
            for tally in (first, second):
                share = (tally.bad + _SMOOTH) / (tally.n + 2 * _SMOOTH)
                variance += share * (1.0 - share) / tally.n
            known += 1.0 / variance
    return known
