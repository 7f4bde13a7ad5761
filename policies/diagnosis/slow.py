"""An answer that came: was it slow, and which step is the first that explains by how much?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from policies.diagnosis.case import Case, Expected
from policies.diagnosis.lengths import excess_of_lengths, in_the_input
from policies.diagnosis.machine import in_the_machine
from policies.diagnosis.parameters import in_the_engine, in_the_parameters
from policies.diagnosis.verdict import STEPS, Cause, Diagnosis, Evidence, Finding, Looked, Symptom
from policies.diagnosis.whole_log import in_the_log
from policies.diagnosis.words import count, listed, seconds, sentence

NOISE_S = 0.02
"""An excess that nobody notices."""
SLOW_WITHOUT_ENGINE_S = 0.1
"""What an answer takes at most to which no engine was asked, when all is well."""
EXPLAINS = 0.5
"""The share of the excess from which on a step explains it."""

_NOTHING = Expected()


def slow_or_not(case: Case) -> Diagnosis:
    """Return why an answer that came took as long as it did."""
    expected = prediction(case)
    took_s = case.total_s + case.outside_s
    excess_s = took_s - expected.total_s
    if excess_s <= margin_s(case, expected):
        return _as_predicted(case, expected, took_s, excess_s)
    return walk(case, expected, took_s, excess_s, Symptom.SLOW)


def prediction(case: Case) -> Expected:
    """Return what was predicted, for the tokens that were written where these are fewer than expected."""
    expected = case.expected
    if expected is None:
        return _NOTHING
    written = case.output_tokens
    if written is None or written >= expected.output_tokens or expected.output_tokens < 2:
        return expected
    part = max(0, written - 1) / (expected.output_tokens - 1)
    return replace(expected, decode_s=expected.decode_s * part, output_tokens=written)


def margin_s(case: Case, expected: Expected) -> float:
    """Return the seconds beyond a prediction within which it held."""
    if not case.asked_an_engine:
        return SLOW_WITHOUT_ENGINE_S
    return max(NOISE_S, expected.spread * expected.total_s)


def walk(case: Case, expected: Expected, took_s: float, excess_s: float, symptom: Symptom) -> Diagnosis:
    """Go through the steps in their order, and stop at the first that explains the excess."""
    looked = [Looked(1, STEPS[1], symptom.value)]
    best: list[Finding] = []
    for step, findings in _steps(case, expected):
        explained_s = sum(finding.seconds for finding in findings)
        says = findings[0].says if findings else "nothing"
        looked.append(Looked(step, STEPS[step], says, round(explained_s, 4)))
        if explained_s > sum(finding.seconds for finding in best):
            best = findings
        if explained_s >= EXPLAINS * excess_s:
            break
    if not best or (best[0].cause is Cause.UNMEASURED and not case.outside):
        return _unexplained(case, took_s, best, tuple(looked))
    first = best[0]
    explained_s = min(excess_s, sum(finding.seconds for finding in best))
    return Diagnosis(
        symptom=symptom,
        step=first.step,
        cause=first.cause,
        text=_text(case, expected, took_s, excess_s, best),
        advice=first.advice,
        evidence=(*_times(case, expected, took_s), *(piece for finding in best for piece in finding.evidence)),
        excess_s=round(excess_s, 4),
        explained_s=round(explained_s, 4),
        looked=tuple(looked),
    )


def _steps(case: Case, expected: Expected) -> Iterator[tuple[int, list[Finding]]]:
    """Yield what each step finds, the weightiest first."""
    rest_s = _rest_s(case, expected)
    yield 2, _sorted(in_the_log(case, expected))
    yield 3, _sorted(in_the_input(case, expected))
    yield 4, in_the_machine(case, rest_s)
    yield 5, _sorted(in_the_parameters(case, expected, rest_s))
    yield 6, in_the_engine(case, expected, rest_s)


def _sorted(findings: list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: -finding.seconds)


def _rest_s(case: Case, expected: Expected) -> float:
    """Seconds by which the engine's own work took longer than predicted, without what longer lengths explain."""
    stages = case.stages
    if stages.engine_s:
        over_s = max(0.0, stages.engine_s - expected.queue_s - expected.prefill_s - expected.decode_s)
    else:
        over_s = max(0.0, stages.prefill_s - expected.prefill_s) + max(0.0, stages.decode_s - expected.decode_s)
    return max(0.0, over_s - sum(excess_of_lengths(case, expected)))


def _text(case: Case, expected: Expected, took_s: float, excess_s: float, findings: list[Finding]) -> str:
    parts = [f"{_took(case, expected, took_s)}{sentence(findings[0].says)}"]
    explained_s = min(excess_s, sum(finding.seconds for finding in findings))
    more = "more than predicted" if case.expected is not None else "in all"
    parts.append(f"That explains {seconds(explained_s)} of the {seconds(excess_s)} {more}.")
    others = [finding.says for finding in findings[1:] if finding.seconds >= 0.1 * excess_s]
    if others:
        parts.append(sentence(f"beside that, {listed(others)}"))
    return " ".join(parts)


def _took(case: Case, expected: Expected, took_s: float) -> str:
    took = f"It took {seconds(case.total_s)}"
    if case.outside:
        took = f"With its stages outside it took {seconds(took_s)} ({seconds(case.total_s)} here)"
    if case.expected is None:
        return f"{took}. "
    low, high = expected.total_s * max(0.0, 1 - expected.spread), expected.total_s * (1 + expected.spread)
    return (
        f"{took} where {seconds(expected.total_s)} were predicted "
        f"(four of five times {seconds(low)} to {seconds(high)}). "
    )


def _times(case: Case, expected: Expected, took_s: float) -> tuple[Evidence, ...]:
    predicted_s = round(expected.total_s, 4) if case.expected is not None else None
    return (Evidence("took", round(took_s, 4), "s", predicted_s),)


def _unexplained(case: Case, took_s: float, found: list[Finding], looked: tuple[Looked, ...]) -> Diagnosis:
    """What cannot be called slow, since nothing was predicted: its deployment is not measured, or none was asked."""
    if not found:
        return replace(_as_predicted(case, _NOTHING, took_s, 0.0), looked=looked)
    looked = (Looked(1, STEPS[1], "none that can be told: nothing was predicted"), *looked[1:])
    return Diagnosis(
        symptom=Symptom.NONE,
        step=6,
        cause=found[0].cause,
        text=sentence(found[0].says),
        advice=found[0].advice,
        evidence=(*_times(case, _NOTHING, took_s), *found[0].evidence),
        looked=looked,
    )


def _as_predicted(case: Case, expected: Expected, took_s: float, excess_s: float) -> Diagnosis:
    looked = (Looked(1, STEPS[1], "it was not slow"),)
    if not case.asked_an_engine:
        return _without_engine(case, took_s, looked)
    if case.expected is None:
        cause, word = Cause.UNMEASURED, "Nothing was predicted: its deployment is not measured. "
    elif excess_s < -margin_s(case, expected):
        cause, word = Cause.AS_PREDICTED, "It was faster than predicted. "
    else:
        cause, word = Cause.AS_PREDICTED, "It took what was predicted. "
    name, spent_s = max(case.stages.items(), key=lambda stage: stage[1])
    text = f"{word}{_took(case, expected, took_s)}Most of it, {seconds(spent_s)}, was {_doing(case, name)}."
    return Diagnosis(
        symptom=Symptom.NONE,
        step=0,
        cause=cause,
        text=text,
        advice=_ADVICE.get(name, "There is nothing to put right."),
        evidence=_times(case, expected, took_s),
        excess_s=round(excess_s, 4) if case.expected is not None else None,
        looked=looked,
    )


def _without_engine(case: Case, took_s: float, looked: tuple[Looked, ...]) -> Diagnosis:
    if case.cache == "hit":
        cause, text = Cause.CACHED, f"It was answered from the cache in {seconds(took_s)}; no engine was asked."
    else:
        cause = Cause.COALESCED
        text = f"An equal request was being answered: this one was given the same answer, after {seconds(took_s)}."
    advice = "There is nothing to put right." if cause is Cause.CACHED else "Ask about the request that it joined."
    return Diagnosis(
        symptom=Symptom.NONE,
        step=0,
        cause=cause,
        text=text,
        advice=advice,
        evidence=(Evidence("took", round(took_s, 4), "s"),),
        looked=looked,
    )


def _doing(case: Case, stage: str) -> str:
    if stage == "prefill" and case.uncached_tokens is not None:
        return f"reading {count(case.uncached_tokens, 'prompt token')}"
    if stage == "decode" and case.output_tokens is not None:
        return f"writing {count(case.output_tokens, 'token')}"
    return _DOING.get(stage, "the gateway's own")


_DOING = {
    "read": "waiting for the request itself",
    "wait": "waiting for a place in this gateway",
    "cache": "asking the cache",
    "retry": "attempts that failed",
    "connect": "connecting to the engine",
    "queue": "waiting in the engine's queue",
    "load": "loading the model",
    "prefill": "reading the prompt",
    "decode": "writing the answer",
    "engine": "the engine's work",
    "client": "waiting for the client to read",
}
_ADVICE = {
    "prefill": "It would be faster with a shorter prompt, or with one that begins as earlier ones did.",
    "decode": "It would be faster with a smaller max_tokens or a shorter answer; streamed, reading begins at once.",
    "queue": "It would be faster with more slots, fewer requests at once, or another deployment.",
    "load": "It would be faster if the model stayed loaded.",
    "engine": "It would be faster with a shorter prompt or answer; streamed, reading begins at once.",
}
