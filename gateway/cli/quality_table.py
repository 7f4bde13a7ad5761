"""A quality verdict as text for people."""

from __future__ import annotations

from gateway.cli.output import Row, styled, table
from measure.quality.verdict import QualityVerdict
from policies.types import Quality

_STYLES = {Quality.BASELINE: "blue", Quality.PASSED: "green", Quality.FAILED: "red", Quality.UNTESTED: "yellow"}


def told(verdict: QualityVerdict) -> str:
    """Return the verdict with its measures and scores, in a few lines."""
    word = styled(verdict.quality, _STYLES[verdict.quality])
    lines = [f"{styled(verdict.deployment, 'bold')}: {word}: {verdict.why}"]
    if verdict.quality is not Quality.BASELINE:
        lines.append(f"  compared with {verdict.baseline.told} on {verdict.prompts} prompts")
    lines += [f"  note: {note}" for note in verdict.notes]
    if verdict.measures:
        rows: list[Row] = [
            (
                each.title,
                each.tell(each.value),
                f"{each.tell(each.low)} to {each.tell(each.high)}",
                each.limit,
                "passed" if each.passed else "failed",
            )
            for each in verdict.measures
        ]
        lines.append(table(("MEASURE", "FOUND", "INTERVAL", "TOLERATED", ""), rows, indent="  "))
        scores = ", ".join(
            f"{each.category} {each.baseline} → {each.candidate}/{each.prompts}" for each in verdict.scores
        )
        lines.append(f"  good answers: {scores}")
    if verdict.means is not None:
        means = verdict.means
        lines.append(
            f"  equal answers {means.identical:.0%}, common beginning {means.prefix:.0%}, "
            f"edit distance {means.edit:.0%}, "
            f"repetition {means.repetition_baseline:.1%} → {means.repetition_candidate:.1%}"
        )
    return "\n".join(lines)
