"""A report on a regression for people: Markdown and HTML, one file each, that say the same. Pure."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from measure.quality.pairs import Pair
from measure.quality.regression import Examined
from measure.quality.verdict import QualityVerdict
from measure.quality.worst import prompt_text, remarks, worst_pairs
from policies.types import Quality

Rows = Sequence[Sequence[str]]

_METHOD = (
    "Both deployments were sent the same prompts, greedily, one after the other. A candidate passes when no interval "
    "(95 % confidence at each end) reaches beyond what is tolerated."
)
_MEASURES = ("measure", "found", "interval", "tolerated", "")
_SCORES = ("category", "prompts", "baseline good", "candidate good")
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
table { border-collapse: collapse; margin: 1rem 0 } th, td { padding: .25rem .8rem; border-bottom: 1px solid #ddd }
th { text-align: left } .pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem } h3 { margin-bottom: .2rem }
pre { background: #f5f5f5; padding: .6rem; white-space: pre-wrap; overflow-wrap: anywhere; margin: .2rem 0 }
.passed, .baseline { color: #176c33 } .failed { color: #b3261e } mark { background: #ffd9d6 } small { color: #666 }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e4e4e4 } pre { background: #23262c }
th, td { border-color: #3a3e46 } mark { background: #6b2a26; color: inherit } .failed { color: #ff8a80 }
.passed, .baseline { color: #7bd88f } small { color: #aaa } }
"""


def to_markdown(tested: Iterable[Examined]) -> str:
    """Return the report as one Markdown document."""
    parts = ["# Quality regression", _METHOD]
    for each in tested:
        verdict = each.verdict
        parts.append(f"## {_md(verdict.deployment)}: {verdict.quality}")
        parts.append(_md(_summary(verdict)))
        parts += [f"Note: {_md(note)}." for note in verdict.notes]
        if verdict.measures:
            parts += [_md_table(_MEASURES, _measures(verdict)), _md_table(_SCORES, _scores(verdict)), _means(verdict)]
        if worst := worst_pairs(each.pairs):
            parts.append(f"### The worst {len(worst)} of {len(each.pairs)} pairs")
            parts += [_md_pair(pair, verdict) for pair in worst]
    return "\n\n".join(parts) + "\n"


def to_html(tested: Iterable[Examined]) -> str:
    """Return the report as one HTML document that needs nothing else. All texts in it are escaped."""
    parts = ["<h1>Quality regression</h1>", f"<p>{_METHOD}</p>"]
    for each in tested:
        verdict = each.verdict
        name = html.escape(verdict.deployment)
        parts.append(f'<h2>{name}: <span class="{verdict.quality}">{verdict.quality}</span></h2>')
        parts.append(f"<p>{html.escape(_summary(verdict))}</p>")
        parts += [f"<p>Note: {html.escape(note)}.</p>" for note in verdict.notes]
        if verdict.measures:
            parts += [_html_table(_MEASURES, _measures(verdict)), _html_table(_SCORES, _scores(verdict))]
            parts.append(f"<p>{html.escape(_means(verdict))}</p>")
        if worst := worst_pairs(each.pairs):
            parts.append(f"<h3>The worst {len(worst)} of {len(each.pairs)} pairs</h3>")
            parts += [_html_pair(pair, verdict) for pair in worst]
    head = f'<meta charset="utf-8"><title>Quality regression</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _summary(verdict: QualityVerdict) -> str:
    if verdict.quality is Quality.BASELINE:
        return (
            f"{verdict.baseline.told}: {verdict.why}. Suite {verdict.suite}, {verdict.at}, Paceline {verdict.paceline}."
        )
    asked = f"{verdict.prompts} prompts" + (f", {verdict.unanswered} without an answer" if verdict.unanswered else "")
    return f"Against {verdict.baseline.told}, {asked}, suite {verdict.suite}, {verdict.at}: {verdict.why}."


def _measures(verdict: QualityVerdict) -> Rows:
    rows = []
    for each in verdict.measures:
        interval = f"{each.tell(each.low)} to {each.tell(each.high)}"
        rows.append((each.title, each.tell(each.value), interval, each.limit, "passed" if each.passed else "failed"))
    return rows


def _scores(verdict: QualityVerdict) -> Rows:
    counts = [(each.prompts, each.baseline, each.candidate) for each in verdict.scores]
    counts.append((sum(each[0] for each in counts), sum(each[1] for each in counts), sum(each[2] for each in counts)))
    names = [*(each.category for each in verdict.scores), "all"]
    return [(name, *map(str, row)) for name, row in zip(names, counts, strict=True)]


def _means(verdict: QualityVerdict) -> str:
    means = verdict.means
    assert means is not None
    return (
        f"Equal answers {means.identical:.0%}; common beginning {means.prefix:.0%} of the words in the mean; "
        f"edit distance {means.edit:.0%}; "
        f"repeated 4-word sequences {means.repetition_baseline:.1%} → {means.repetition_candidate:.1%}."
    )


def _md_pair(pair: Pair, verdict: QualityVerdict) -> str:
    prompt = _fenced(prompt_text(pair))
    said = "; ".join(remarks(pair))
    sides = ((verdict.baseline.deployment, pair.baseline.written), (verdict.deployment, pair.candidate.written))
    answers = "\n\n".join(f"{_md(name)}:\n\n{_fenced(text)}" for name, text in sides)
    return f"#### {_md(pair.prompt.id)}\n\n{_md(said)}\n\n{prompt}\n\n{answers}"


def _html_pair(pair: Pair, verdict: QualityVerdict) -> str:
    same = pair.same_characters
    sides = ((verdict.baseline.deployment, pair.baseline.written), (verdict.deployment, pair.candidate.written))
    answers = "".join(
        f"<div><small>{html.escape(name)}</small><pre>{html.escape(text[:same])}<mark>{html.escape(text[same:])}</mark>"
        "</pre></div>"
        for name, text in sides
    )
    return (
        f"<h3>{html.escape(pair.prompt.id)}</h3><p>{html.escape('; '.join(remarks(pair)))}</p>"
        f'<pre>{html.escape(prompt_text(pair))}</pre><div class="pair">{answers}</div>'
    )


def _md_table(head: Sequence[str], rows: Rows) -> str:
    lines = [f"| {' | '.join(map(_md, row))} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def _html_table(head: Sequence[str], rows: Rows) -> str:
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "\n".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{top}</tr>\n{body}</table>"


def _md(text: str) -> str:
    """Text with everything escaped that Markdown or HTML would take for its own."""
    return re.sub(r"([\\`*_{}\[\]<>#|!])", r"\\\1", text)


def _fenced(text: str) -> str:
    """Text as it is, in a fence that is longer than any within."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"
