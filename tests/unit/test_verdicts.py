"""What was judged is kept by fingerprint, and combined into what routing wants to know."""

from __future__ import annotations

from pathlib import Path

from measurements import deployment

from measure.store import Store
from measure.verdicts import Judged, Verdict, combine
from policies.types import Quality


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
    verdicts = combine({"a": {"quality": "excellent"}}, {"a": {"stable": "yes"}})
    assert verdicts == {"a": Verdict()}


def test_a_deployment_carries_its_verdict() -> None:
    judged = Verdict(Quality.PASSED, stable=True).of(deployment())
    assert (judged.quality, judged.stable, judged.id) == (Quality.PASSED, True, deployment().id)
