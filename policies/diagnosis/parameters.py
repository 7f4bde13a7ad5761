"""Steps 5 and 6: how the engine is used, and only then the engine itself."""

from __future__ import annotations

from dataclasses import replace

from policies.diagnosis.case import Case, Expected
from policies.diagnosis.lengths import excess_of_lengths, prompt_shares
from policies.diagnosis.verdict import Cause, Evidence, Finding
from policies.diagnosis.words import count, listed, seconds

_NOTABLE = 0.25
"""So many more neighbours than were predicted, in the mean, are worth naming."""
_MOST_NAMED = 4
_KINDS = ("same_decoding", "same_prefilling", "other_decoding", "other_prefilling")


def in_the_parameters(case: Case, expected: Expected, rest_s: float) -> list[Finding]:
    """Return what concurrency and the engine's cache explain; ``rest_s`` is what lengths do not."""
    found = []
    prefill_s, _ = excess_of_lengths(case, expected)
    _, lost = prompt_shares(case, expected)
    if prefill_s * lost > 0.0:
        found.append(_prefix(case, expected, prefill_s * lost))
    beside = sum(case.neighbours.get(kind, 0.0) for kind in _KINDS)
    later = sum(each.later for each in case.beside)
    if rest_s > 0.0 and max(beside - expected.company, min(beside, later)) >= _NOTABLE:
        found.append(_neighbours(case, expected, rest_s, beside, later))
    return found


def _prefix(case: Case, expected: Expected, explained_s: float) -> Finding:
    held = case.cached_tokens or 0
    says = (
        f"the engine held {count(held, 'token')} of the prompt where {expected.cached_tokens:,} were expected, "
        f"and reading the others takes {seconds(explained_s)} longer"
    )
    evidence = (Evidence("prompt tokens in the engine's cache", held, "tokens", float(expected.cached_tokens)),)
    advice = "Give the engine a larger KV cache or more slots, or keep what all prompts share at their beginning."
    return Finding(5, Cause.PREFIX_LOST, explained_s, says, advice, evidence)


def _neighbours(case: Case, expected: Expected, rest_s: float, beside: float, later: float) -> Finding:
    other = sum(case.neighbours.get(kind, 0.0) for kind in _KINDS[2:])
    where = "in other engines on the same hardware" if 2 * other > beside else "in the same engine"
    who = listed(f"{each.deployment} with {each.others:.1f}" for each in case.beside[:_MOST_NAMED])
    says = (
        f"{beside:.1f} others ran beside it in the mean, mostly {where}{f' ({who})' if who else ''}, "
        f"{_what_was_known(expected, later)}: {seconds(rest_s)} more for the same tokens"
    )
    names = {kind: kind.replace("same_", "same engine, ").replace("other_", "other engines, ") for kind in _KINDS}
    evidence = (
        Evidence("others beside it", round(beside, 2), "", round(expected.company, 2)),
        *(
            Evidence(f"{names[kind]}", round(case.neighbours[kind], 2))
            for kind in _KINDS
            if case.neighbours.get(kind, 0.0) >= 0.05
        ),
        *(Evidence(f"beside it: {each.deployment}", round(each.others, 2)) for each in case.beside[:_MOST_NAMED]),
        *((Evidence("sent after it", round(later, 2)),) if later >= 0.05 else ()),
    )
    advice = (
        "Send fewer requests at once (limits.per_key), use objective `throughput`, or put engines on hardware apart."
    )
    return Finding(5, Cause.NEIGHBOURS, rest_s, says, advice, evidence)


def _what_was_known(expected: Expected, later: float) -> str:
    usual = f"where {expected.company:.1f} were expected"
    return usual if later < _NOTABLE else f"{later:.1f} of them sent after it, {usual}"


def in_the_engine(case: Case, expected: Expected, rest_s: float) -> list[Finding]:
    """Return what nothing before explains: the engine itself."""
    if rest_s <= 0.0 or not case.asked_an_engine:
        return []
    stages = case.stages
    work_s = stages.prefill_s + stages.decode_s + stages.engine_s
    of = "" if case.uncached_tokens is None else f" for {case.uncached_tokens:,} tokens to read"
    of += f" and {case.output_tokens:,} to write" if of and case.output_tokens is not None else ""
    evidence: tuple[Evidence, ...] = (
        Evidence("prefill", round(stages.prefill_s, 4), "s", round(expected.prefill_s, 4)),
        Evidence("decode", round(stages.decode_s, 4), "s", round(expected.decode_s, 4)),
    )
    if stages.engine_s:
        usual_s = expected.queue_s + expected.prefill_s + expected.decode_s
        evidence = (Evidence("in the engine", round(stages.engine_s, 4), "s", round(usual_s, 4)),)
    if case.expected is None:
        evidence = tuple(replace(each, expected=None) for each in evidence)
        says = f"the deployment {case.deployment} took {seconds(work_s)}{of}; it is not measured: nothing was predicted"
        advice = f"Measure it: `paceline bench {case.deployment} --quick`."
        return [Finding(6, Cause.UNMEASURED, rest_s, says, advice, evidence)]
    says = (
        f"the deployment {case.deployment} itself took {seconds(work_s)}{of}, {seconds(rest_s)} more than it was "
        f"measured to take, and no step before this one says why"
    )
    advice = f"`paceline bench {case.deployment} --compare-last` says whether it has become slower, and since when."
    return [Finding(6, Cause.ENGINE_SLOW, rest_s, says, advice, evidence)]
