"""The entry: one request in, one answer out. Pure."""

from __future__ import annotations

from policies.diagnosis.case import Case, Ended
from policies.diagnosis.failed import failed
from policies.diagnosis.slow import slow_or_not
from policies.diagnosis.unfinished import unfinished
from policies.diagnosis.verdict import STEPS, Cause, Diagnosis, Evidence, Looked, Symptom
from policies.diagnosis.words import seconds
from policies.types import Operation


def diagnose(case: Case) -> Diagnosis:
    """Return why a request took as long as it did, or what it waits for.

    The steps are gone through in their order (``verdict.STEPS``): the symptom first, the engine last.
    """
    if case.error or case.ended in (Ended.FAILED, Ended.REFUSED):
        return failed(case)
    if case.ended in (Ended.RUNNING, Ended.CANCELLED):
        return unfinished(case)
    if case.output_tokens == 0 and case.asked_an_engine and case.operation != Operation.EMBEDDINGS:
        return _empty(case)
    return slow_or_not(case)


def _empty(case: Case) -> Diagnosis:
    reason = f" (finish reason: {case.finish_reason})" if case.finish_reason else ""
    text = (
        f"The deployment {case.deployment} read {case.prompt_tokens or 0:,} tokens, ended its answer without "
        f"writing one{reason}, and took {seconds(case.total_s)} for that."
    )
    looked = (
        Looked(1, STEPS[1], Symptom.NO_OUTPUT.value),
        Looked(2, STEPS[2], f"it reached {case.deployment}, which called its answer complete"),
        Looked(3, STEPS[3], "what was asked for left nothing to write"),
    )
    return Diagnosis(
        symptom=Symptom.NO_OUTPUT,
        step=3,
        cause=Cause.EMPTY_ANSWER,
        text=text,
        advice="Look at the stop sequences, at the chat template, and at how the prompt ends.",
        evidence=(Evidence("answer", 0, "tokens"), Evidence("took", round(case.total_s, 4), "s")),
        looked=looked,
    )
