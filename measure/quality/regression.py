"""The regression itself: baseline first, then one candidate after the other, on the same prompts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
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
from measure.records import paceline_version
from policies.types import Capability, Deployment, Quality


@dataclass(frozen=True, slots=True)
class Tested:
    """What came of one deployment: its verdict, and the pairs behind it (none for the baseline itself)."""

    deployment: Deployment
    verdict: QualityVerdict
    pairs: tuple[Pair, ...] = ()


async def regress(
    baseline: Examinee,
    candidates: Sequence[Examinee],
    prompts: Sequence[Prompt],
    suite: str,
    *,
    progress: Progress = silent,
) -> AsyncIterator[Tested]:
    """Yield what came of the baseline, then of each candidate, as soon as it is known.

    One request at a time runs, so that nothing is batched with anything: the same weights then give the same answers.
    A candidate that stops answering is left ``untested``. Raises ``EngineError`` when the baseline does.
    """
    force_calls = all(Capability.TOOL_CHOICE in each.deployment.capabilities for each in (baseline, *candidates))
    asked = [prompt for prompt in prompts if baseline.takes(prompt)]
    replies = await examine(baseline, asked, force_calls=force_calls, progress=progress)
    good = [prompt for prompt in asked if not replies[prompt.id].failed]
    yield Tested(
        baseline.deployment,
        _verdict(
            baseline.deployment,
            baseline.deployment,
            suite,
            Quality.BASELINE,
            "what its model's other deployments are compared with",
        ),
    )
    for candidate in candidates:
        yield await _test(baseline, candidate, good, replies, suite, force_calls=force_calls, progress=progress)


async def _test(
    baseline: Examinee,
    candidate: Examinee,
    prompts: Sequence[Prompt],
    replies: dict[str, Reply],
    suite: str,
    *,
    force_calls: bool,
    progress: Progress,
) -> Tested:
    asked = [prompt for prompt in prompts if candidate.takes(prompt)]
    deployment, compared = candidate.deployment, baseline.deployment
    try:
        theirs = await examine(candidate, asked, force_calls=force_calls, progress=progress)
    except EngineError as error:
        why = f"stopped answering: {type(error).__name__}: {error.message}"
        return Tested(deployment, _verdict(deployment, compared, suite, Quality.UNTESTED, why))
    pairs = pair_up(asked, replies, theirs)
    unanswered = sum(bool(reply.failed) for reply in theirs.values())
    quality, why = judge(pairs, unanswered)
    return Tested(deployment, _verdict(deployment, compared, suite, quality, why, pairs, unanswered), pairs)


def _verdict(
    deployment: Deployment,
    baseline: Deployment,
    suite: str,
    quality: Quality,
    why: str,
    pairs: Sequence[Pair] = (),
    unanswered: int = 0,
) -> QualityVerdict:
    return QualityVerdict(
        quality=quality,
        why=why,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        suite=suite,
        paceline=paceline_version(),
        deployment=deployment.id,
        baseline=baseline_of(baseline),
        prompts=len(pairs),
        unanswered=unanswered,
        measures=measures_of(pairs) if pairs else (),
        scores=scores_of(pairs),
        means=means_of(pairs),
        notes=notes_of(pairs),
    )
