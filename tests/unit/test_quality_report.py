"""The report shows the worst pairs side by side, and nothing that a model wrote becomes markup."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from measurements import deployment
from replies import GOOD, OTHER, pair, pairs

from measure.quality.checks import Says
from measure.quality.measures import measures_of
from measure.quality.pairs import Pair
from measure.quality.regression import Examined, Reference
from measure.quality.report import to_html, to_markdown
from measure.quality.verdict import QualityVerdict, baseline_of, judge, means_of, scores_of
from measure.quality.worst import WORST, remarks, worst_pairs
from policies.types import Precision

BASELINE = deployment("f16", precision=Precision.FP16, scheme="F16")
EVIL = "</pre><script>alert(1)</script> | `` ``` _x_ <b>"


def comparison(found: list[Pair], name: str = "q4") -> Examined:
    candidate = deployment(name)
    quality, why = judge(found, 0)
    verdict = QualityVerdict(
        quality=quality,
        why=why,
        at="2026-01-02T03:04:05+00:00",
        suite="1",
        paceline="0.1",
        deployment=candidate.id,
        baseline=baseline_of(BASELINE),
        prompts=len(found),
        measures=measures_of(found),
        scores=scores_of(found),
        means=means_of(found),
    )
    return Examined(candidate, verdict, tuple(found))


class Tags(HTMLParser):
    """Collects the tags of a document, and checks that they close."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_lost_answers_come_first_then_loops_then_what_differs_most() -> None:
    lost = pair("It is 42.", "It is 41.", 1, Says(("42",)))
    loop = pair(GOOD, "the moon is up " * 10, 2, Says(("the",)))
    other = pair(GOOD, OTHER, 3)
    slightly = pair(GOOD, GOOD.replace("people", "sheep"), 4)
    equal = pair(GOOD, GOOD, 5)
    assert worst_pairs([equal, slightly, other, loop, lost]) == [lost, loop, other, slightly]
    assert len(worst_pairs([pair(GOOD, OTHER, n) for n in range(40)])) == WORST


def test_a_pair_says_what_became_of_it() -> None:
    assert remarks(pair("It is 42.", "It is 41.", 1, Says(("42",))))[0] == "lost: the answer does not say '42'"
    assert remarks(pair("It is 41.", "It is 42.", 1, Says(("42",))))[0].startswith("gained")
    assert remarks(pair("a", "b", 1, Says(("42",))))[0].startswith("both fail")
    assert "became a loop" in remarks(pair(GOOD, "the moon is up " * 10))
    assert any("nats lost" in remark for remark in remarks(pair("a b", "a c", before=-0.1, after=-0.2)))


@pytest.mark.parametrize("render", [to_markdown, to_html])
def test_a_report_has_verdict_measures_scores_and_both_answers(render: object) -> None:
    assert callable(render)
    report = render([comparison(pairs((60, GOOD, OTHER), (30, GOOD, GOOD)))])
    for part in ("q4", "failed", "f16 (fp16 F16)", "words that differ", "format", "Question 0?", "The ferry", "Nobody"):
        assert part in report, part


def test_html_is_well_formed_and_needs_nothing_else() -> None:
    report = to_html([comparison(pairs((2, EVIL, EVIL + EVIL), (2, GOOD, EVIL), (30, GOOD, GOOD)))])
    tags = Tags()
    tags.feed(report)
    assert tags.open == []
    assert "script" not in tags.seen
    assert "b" not in tags.seen
    assert "://" not in report


def test_markdown_keeps_answers_in_fences_that_they_cannot_close() -> None:
    report = to_markdown([comparison(pairs((2, EVIL, EVIL + "\n````\nx"), (30, GOOD, GOOD)), name="a|b_c")])
    assert "`````text" in report
    assert r"a\|b\_c" in report
    assert all(line.count("|") - line.count(r"\|") in (0, 5, 6) for line in report.splitlines() if line.startswith("|"))


def test_the_baseline_is_named_as_such() -> None:
    reference = Reference(BASELINE, "1", (), {}, force_calls=False)
    assert "## f16: baseline" in to_markdown([reference.examined])
    assert "compared with it" in to_html([reference.examined])


def test_long_prompts_lose_their_middle() -> None:
    from dataclasses import replace

    from measure.quality.prompts import user

    first = pair(GOOD, OTHER)
    long = replace(first, prompt=replace(first.prompt, messages=user("begin " + "x" * 5000 + " end")))
    report = to_markdown([comparison([long] * 30)])
    assert "begin x" in report
    assert "[…]" in report
    assert "x" * 3000 not in report
