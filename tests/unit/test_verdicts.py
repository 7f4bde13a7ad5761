"""What was judged is kept by fingerprint, and combined into what routing wants to know."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from measurements import deployment

from measure.store import Store
from measure.verdicts import Judged, Verdict, combine, standings
from policies.types import Deployment, Precision, Quality


def test_a_verdict_outlives_the_process_and_replaces_the_one_before(tmp_path: Path) -> None:
    store = Store(tmp_path / "records.sqlite3")
    store.save_verdict(Judged.STABILITY, "mine", {"stable": True})
    store.save_verdict(Judged.STABILITY, "mine", {"stable": False, "reasons": ["2 of 50 failed"]})
    store.close()
    store = Store(tmp_path / "records.sqlite3")
    assert store.load_verdicts(Judged.STABILITY) == {"mine": {"stable": False, "reasons": ["2 of 50 failed"]}}
    assert store.load_verdicts(Judged.QUALITY) == {}
    store.close()


def test_quality_and_stability_are_judged_apart_and_known_together() -> None:
    verdicts = combine({"a": {"quality": "passed"}, "b": {"quality": "failed"}}, {"a": {"stable": True}, "c": {}})
    assert verdicts == {
        "a": Verdict(Quality.PASSED, stable=True),
        "b": Verdict(Quality.FAILED),
        "c": Verdict(),
    }


def test_what_another_version_wrote_counts_as_unjudged() -> None:
    verdicts = combine(
        {"a": {"quality": "excellent", "why": 3, "baseline": {"precision": 16}}}, {"a": {"stable": "yes"}}
    )
    assert verdicts == {"a": Verdict()}


SMALL = deployment("small", precision=Precision.INT4)
MIDDLE = deployment("middle", precision=Precision.INT8)
BEST = deployment("best", precision=Precision.BF16)


def quality_of(
    name: str, *deployments: Deployment, trusted: Precision | None = None, **verdict: Any
) -> tuple[Quality, str]:
    """How one of the deployments stands with the verdict that is given."""
    verdicts = {f"fingerprint of {name}": Verdict(**verdict)}
    standing = standings(deployments, verdicts, {"smol": trusted} if trusted else {})
    (mine,) = (each for each in standing if each.deployment.id == name)
    return mine.deployment.quality, mine.why


def test_a_deployment_carries_its_verdict_and_the_reason() -> None:
    verdict = Verdict(Quality.FAILED, stable=True, why="loops", baseline=Precision.BF16)
    (standing,) = standings([SMALL], {SMALL.fingerprint: verdict}, {})
    assert (standing.deployment.quality, standing.deployment.stable, standing.why) == (Quality.FAILED, True, "loops")
    assert standing.deployment.id == "small"


def test_another_fingerprint_is_untested_at_once() -> None:
    updated = replace(SMALL, fingerprint="after an update")
    assert quality_of("small", updated, quality=Quality.PASSED) == (Quality.UNTESTED, "")


def test_a_comparison_with_a_quantised_baseline_no_longer_counts_when_there_is_a_better_one() -> None:
    passed = {"quality": Quality.PASSED, "why": "no harm", "baseline": Precision.INT8}
    assert quality_of("small", SMALL, MIDDLE, **passed) == (Quality.PASSED, "no harm")
    quality, why = quality_of("small", SMALL, MIDDLE, BEST, **passed)
    assert (quality, why) == (Quality.UNTESTED, "tested against int8 only, and there is bf16 now")
    assert quality_of("middle", MIDDLE, BEST, quality=Quality.BASELINE, baseline=Precision.INT8)[0] is Quality.UNTESTED


def test_16_bits_will_do_for_a_baseline_where_there_are_32() -> None:
    more = deployment("more", precision=Precision.FP32)
    assert quality_of("small", SMALL, more, quality=Quality.PASSED, baseline=Precision.BF16)[0] is Quality.PASSED


def test_another_models_better_precision_is_of_no_interest() -> None:
    other = deployment("other", model="another", precision=Precision.BF16)
    assert quality_of("small", SMALL, other, quality=Quality.PASSED, baseline=Precision.INT8)[0] is Quality.PASSED


def test_a_failure_against_a_weak_baseline_remains_one() -> None:
    failed = {"quality": Quality.FAILED, "why": "loops", "baseline": Precision.INT8}
    assert quality_of("small", SMALL, MIDDLE, BEST, **failed) == (Quality.FAILED, "loops")


def test_a_precision_that_the_configuration_calls_good_passes_and_says_by_whose_word() -> None:
    assert quality_of("middle", SMALL, MIDDLE, trusted=Precision.INT8) == (Quality.PASSED, "stated by configuration")
    assert quality_of("small", SMALL, MIDDLE, trusted=Precision.INT8) == (Quality.UNTESTED, "")
    quality, why = quality_of("middle", MIDDLE, trusted=Precision.INT4, quality=Quality.FAILED, why="loops")
    assert (quality, why) == (Quality.PASSED, "stated by configuration; its regression failed: loops")
    tested = quality_of("middle", MIDDLE, trusted=Precision.INT4, quality=Quality.PASSED, why="no harm")
    assert tested == (Quality.PASSED, "no harm")
