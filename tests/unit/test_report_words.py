"""What `paceline explain` says of precision and quality."""

from __future__ import annotations

import pytest
from fleets import deployment

from gateway.report import who_gets
from policies.types import Precision, Quality


@pytest.mark.parametrize(
    ("precision", "quality", "why", "words"),
    [
        (Precision.BF16, Quality.UNTESTED, "", "16 bits or more: whoever names no precision"),
        (
            Precision.INT8,
            Quality.PASSED,
            "as stated",
            "passed the quality regression (as stated): whoever names no precision, when it is faster by a margin",
        ),
        (
            Precision.INT4,
            Quality.FAILED,
            "format lost",
            "failed the quality regression (format lost): only who asks for it, or when nothing better can serve",
        ),
        (
            Precision.INT4,
            Quality.UNTESTED,
            "",
            "untested, `paceline quality` tests it: only who asks for it, or when nothing better can serve",
        ),
        (
            Precision.UNKNOWN,
            Quality.UNTESTED,
            "",
            "unknown precision, untested: only who asks for it, or when nothing better can serve",
        ),
    ],
)
def test_who_gets_a_precision_follows_from_its_bits_and_its_regression(
    precision: Precision, quality: Quality, why: str, words: str
) -> None:
    assert who_gets(deployment("a", precision, quality=quality), why) == words


def test_a_baseline_is_called_one_and_a_hosted_api_comes_last() -> None:
    baseline = deployment("a", Precision.INT8, quality=Quality.BASELINE)
    assert who_gets(baseline, "").startswith("is the baseline of the quality regression")
    assert who_gets(deployment("a", hosted=True), "") == "a hosted API: after all others"
