"""The regression itself: baseline first, then one candidate after the other, on the same prompts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from adapters.errors import EngineError
from measure.progress import Progress, silent
from measure.quality.examine import Examinee, examine
from measure.quality.measures import measures_of
from measure.quality.pairs import Pair, pair_up
from measure.quality.prompts import Prompt
from measure.quality.reply import Reply
from measure.quality.verdict import QualityVerdict, baseline_of, judge, means_of, notes_of, scores_of
from measure.quality.worst import kept_pairs
from measure.records import paceline_version
from policies.types import Capability, Deployment, Quality


@dataclass(frozen=True, slots=True)
class Examined:
    """What came of one deployment: its verdict, and the pairs behind it (none for the baseline itself)."""

    deployment: Deployment
    verdict: QualityVerdict
    pairs: tuple[Pair, ...] = ()


@dataclass(frozen=True, slots=True)
class Reference:
    """What candidates are compared with: the baseline's replies to the prompts that it answered."""

    deployment: Deployment
    suite: str
    prompts: tuple[Prompt, ...]
    replies: Mapping[str, Reply]
    force_calls: bool

    @property
    def examined(self) -> Examined:
        """The baseline's own verdict."""
        why = "its model's other deployments are compared with it"
        return Examined(self.deployment, verdict_of(self.deployment, self, Quality.BASELINE, why))


async def regress(
    baseline: Examinee,
    candidates: Sequence[Examinee],
    prompts: Sequence[Prompt],
    suite: str,
    *,
    progress: Progress = silent,
) -> AsyncIterator[Examined]:
    """Yield what came of the baseline, then of each candidate, as soon as it is known.

    One request at a time runs, so that nothing is batched with anything: the same weights then give the same answers.
    Raises ``EngineError`` when the baseline stops answering.
    """
    force_calls = all(Capability.TOOL_CHOICE in each.deployment.capabilities for each in (baseline, *candidates))
    reference = await refer(baseline, prompts, suite, force_calls=force_calls, progress=progress)
    yield reference.examined
    for candidate in candidates:
        yield await compare(reference, candidate, progress=progress)


async def refer(
    baseline: Examinee, prompts: Sequence[Prompt], suite: str, *, force_calls: bool = False, progress: Progress = silent
) -> Reference:
    """Ask the baseline. ``force_calls`` where it and all candidates can be made to call a tool. See ``examine``."""
    asked = [prompt for prompt in prompts if baseline.takes(prompt)]
    replies = await examine(baseline, asked, force_calls=force_calls, progress=progress)
    answered = tuple(prompt for prompt in asked if not replies[prompt.id].failed)
    return Reference(baseline.deployment, suite, answered, replies, force_calls)


async def compare(reference: Reference, candidate: Examinee, *, progress: Progress = silent) -> Examined:
    """Ask a candidate the same, and judge it. One that stops answering is left ``untested``."""
    asked = [prompt for prompt in reference.prompts if candidate.takes(prompt)]
    deployment = candidate.deployment
    try:
        replies = await examine(candidate, asked, force_calls=reference.force_calls, progress=progress)
    except EngineError as error:
        why = f"stopped answering: {type(error).__name__}: {error.message}"
        return Examined(deployment, verdict_of(deployment, reference, Quality.UNTESTED, why))
    pairs = pair_up(asked, reference.replies, replies)
    unanswered = sum(bool(reply.failed) for reply in replies.values())
    quality, why = judge(pairs, unanswered)
    return Examined(deployment, verdict_of(deployment, reference, quality, why, pairs, unanswered), pairs)


def verdict_of(
    deployment: Deployment,
    reference: Reference,
    quality: Quality,
    why: str,
    pairs: Sequence[Pair] = (),
    unanswered: int = 0,
) -> QualityVerdict:
    """Return the verdict with all that is measured of the pairs."""
    return QualityVerdict(
        quality=quality,
        why=why,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        suite=reference.suite,
        paceline=paceline_version(),
        deployment=deployment.id,
        baseline=baseline_of(reference.deployment),
        prompts=len(pairs),
        unanswered=unanswered,
        measures=measures_of(pairs) if pairs else (),
        scores=scores_of(pairs),
        means=means_of(pairs),
        notes=notes_of(pairs),
        worst=kept_pairs(pairs),
    )
