"""Step 3, input and task: prompt, answer, and calls outside of the model."""

from __future__ import annotations

from policies.diagnosis.case import Case, Expected
from policies.diagnosis.verdict import Cause, Evidence, Finding
from policies.diagnosis.words import count, listed, seconds


def excess_of_lengths(case: Case, expected: Expected) -> tuple[float, float]:
    """Return the seconds of prefill and of decode beyond the prediction that longer lengths alone explain."""
    alone, stages = case.alone, case.stages
    if alone is None or case.expected is None:
        return 0.0, 0.0
    over = max(0.0, stages.engine_s - expected.total_s) if stages.engine_s else None
    prefill_s = max(0.0, alone.prefill_s - expected.prefill_s)
    decode_s = max(0.0, alone.decode_s - expected.decode_s)
    if over is not None:
        both = max(prefill_s + decode_s, 1e-9)
        part = min(1.0, over / both)
        return prefill_s * part, decode_s * part
    return (
        min(prefill_s, max(0.0, stages.prefill_s - expected.prefill_s)),
        min(decode_s, max(0.0, stages.decode_s - expected.decode_s)),
    )


def prompt_shares(case: Case, expected: Expected) -> tuple[float, float]:
    """Return which part of a prefill's excess a longer prompt explains, and which one that was no longer held."""
    longer = max(0, (case.prompt_tokens or 0) - expected.prompt_tokens)
    lost = max(0, expected.cached_tokens - (case.cached_tokens or 0)) if case.cached_tokens is not None else 0
    if not longer + lost:
        return 0.0, 0.0
    return longer / (longer + lost), lost / (longer + lost)


def in_the_input(case: Case, expected: Expected) -> list[Finding]:
    """Return what the request itself asked for beyond what was expected of it."""
    prefill_s, decode_s = excess_of_lengths(case, expected)
    longer, _ = prompt_shares(case, expected)
    found = []
    if prefill_s * longer > 0.0:
        found.append(_prompt(case, expected, prefill_s * longer))
    if decode_s > 0.0:
        found.append(_answer(case, expected, decode_s))
    if case.outside:
        found.append(_outside(case))
    return found


def _prompt(case: Case, expected: Expected, explained_s: float) -> Finding:
    tokens = case.prompt_tokens or 0
    says = (
        f"the prompt has {count(tokens, 'token')} where {expected.prompt_tokens:,} were expected, "
        f"and reading them takes {seconds(explained_s)} longer"
    )
    evidence = (
        Evidence("prompt", tokens, "tokens", float(expected.prompt_tokens)),
        Evidence("prefill", round(case.stages.prefill_s, 4), "s", round(expected.prefill_s, 4)),
    )
    advice = "Send a shorter prompt (fewer documents, less history), or one that begins as earlier ones did."
    return Finding(3, Cause.LONG_PROMPT, explained_s, says, advice, evidence)


def _answer(case: Case, expected: Expected, explained_s: float) -> Finding:
    tokens = case.output_tokens or 0
    allowed = f"max_tokens allows {case.max_output:,}" if case.max_output else "there is no max_tokens"
    says = (
        f"the answer has {count(tokens, 'token')} where {expected.output_tokens:,} were expected ({allowed}), "
        f"and writing them takes {seconds(explained_s)} longer"
    )
    evidence = [
        Evidence("answer", tokens, "tokens", float(expected.output_tokens)),
        Evidence("decode", round(case.stages.decode_s, 4), "s", round(expected.decode_s, 4)),
    ]
    if case.max_output:
        evidence.append(Evidence("max_tokens", case.max_output, "tokens"))
    advice = "Set max_tokens to what is needed, and ask for a short answer; stream it so that reading begins at once."
    return Finding(3, Cause.LONG_ANSWER, explained_s, says, advice, tuple(evidence))


def _outside(case: Case) -> Finding:
    each = listed(f"{name} {seconds(spent_s)}" for name, spent_s in case.outside)
    says = f"{seconds(case.outside_s)} went by before the model was asked, by the caller's own word: {each}"
    evidence = tuple(Evidence(f"outside: {name}", round(spent_s, 4), "s", 0.0) for name, spent_s in case.outside)
    return Finding(
        3, Cause.OUTSIDE, case.outside_s, says, "Look at these stages first: no engine makes them faster.", evidence
    )
