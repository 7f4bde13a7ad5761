"""When the noise benchmark is content: formats pass, and from some level of noise on all fail."""

from __future__ import annotations

import pytest
from measurements import deployment

from benchmarks.quality_noise.__main__ import is_right, print_table
from benchmarks.quality_noise.cases import Case
from measure.quality.verdict import QualityVerdict, baseline_of
from policies.types import Quality

PASSED, FAILED, UNTESTED = Quality.PASSED, Quality.FAILED, Quality.UNTESTED


def rows(*found: tuple[float, Quality]) -> list[tuple[Case, QualityVerdict]]:
    def verdict(quality: Quality) -> QualityVerdict:
        baseline = baseline_of(deployment())
        return QualityVerdict(quality=quality, why="", at="", suite="1", paceline="", deployment="d", baseline=baseline)

    return [(Case("q8_0" if not noise else "f16", noise), verdict(quality)) for noise, quality in found]


def test_it_is_content_when_harm_is_noticed_from_some_level_on() -> None:
    assert is_right(rows((0.0, PASSED), (0.01, PASSED), (0.05, FAILED), (0.2, FAILED)))
    assert is_right(rows((0.0, PASSED)))


@pytest.mark.parametrize(
    "found",
    [
        [(0.0, FAILED), (0.2, FAILED)],
        [(0.0, UNTESTED)],
        [(0.0, PASSED), (0.2, PASSED)],
        [(0.01, FAILED), (0.05, PASSED), (0.2, FAILED)],
    ],
)
def test_it_is_not_when_a_format_fails_or_harm_passes(found: list[tuple[float, Quality]]) -> None:
    assert not is_right(rows(*found))


def test_cases_are_told_by_format_and_noise() -> None:
    assert [Case("q8_0").name, Case("f16", 0.005).name] == ["Q8_0 unharmed", "F16, 0.5% noise"]


def test_as_markdown_each_case_is_one_line_of_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(rows((0.0, PASSED), (0.05, FAILED)), markdown=True)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0].endswith(":")
    assert len(lines) == 5
    assert all(line.startswith("|") and line.endswith("|") for line in lines[1:])
