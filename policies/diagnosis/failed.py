"""A request that was given an error: who did not answer, and did it reach a model at all?"""

from __future__ import annotations

from policies.diagnosis.case import Case, Try
from policies.diagnosis.verdict import STEPS, Cause, Diagnosis, Evidence, Looked, Symptom
from policies.diagnosis.words import seconds, sentence

_FAULTS = {
    "Unreachable": Cause.ENGINE_DEAD,
    "Broken": Cause.ENGINE_DEAD,
    "TimedOut": Cause.ENGINE_SILENT,
    "Interrupted": Cause.ENGINE_DIED,
    "Busy": Cause.ENGINE_BUSY,
    "Loading": Cause.ENGINE_LOADING,
    "Rejected": Cause.ENGINE_REJECTED,
}
"""What an attempt's fault means; see ``adapters.errors``."""
_CODES = {
    "too_many_requests": Cause.OVERLOADED,
    "deadline": Cause.DEADLINE,
    "stopping": Cause.STOPPING,
    "no_deployment_ready": Cause.ENGINE_DEAD,
    "context_length_exceeded": Cause.CONTEXT,
}
"""What our own errors mean, by their codes."""
_ADVICE = {
    Cause.REFUSED: "Put the request right: the error says what is wrong with it.",
    Cause.OVERLOADED: "Send fewer at once, or raise limits.max_concurrent and limits.queue.",
    Cause.DEADLINE: "Allow more time, ask for a shorter answer, or add a faster deployment.",
    Cause.STOPPING: "Send it again.",
    Cause.ENGINE_DEAD: "`paceline doctor` says whether the engine runs; its own log has the cause.",
    Cause.ENGINE_SILENT: "Look at the engine's log, its process, and the machine that it runs on.",
    Cause.ENGINE_DIED: "The engine's own log has the cause: memory that ran out is the usual one.",
    Cause.ENGINE_BUSY: "Give the engine a longer queue or more slots, send fewer at once, or add a deployment.",
    Cause.ENGINE_LOADING: "Keep the model loaded, or wait for it: `paceline models` says how far it is.",
    Cause.ENGINE_REJECTED: "Put the request right: the engine says what is wrong with it.",
    Cause.CONTEXT: "Shorten the prompt, or serve the model with a longer context.",
}
_STATUS_ADVICE = {
    401: "Send a key that `paceline key` made: `Authorization: Bearer …`.",
    403: "Use a key that may do this, or ask under a name that server.allowed_hosts knows.",
    404: "`paceline models` lists the names.",
    405: "Send it as POST.",
    413: "Send less, or raise server.max_body_bytes.",
    504: "Leave out `only-if-cached` to have an engine asked.",
}
_STEP_OF = {Cause.ENGINE_REJECTED: 3, Cause.REFUSED: 3, Cause.CONTEXT: 5}
_LONG_SILENCE_S = 1.0


def failed(case: Case) -> Diagnosis:
    """Return why a request ended in an error."""
    last = case.tries[-1] if case.tries else None
    cause = _cause(case, last)
    symptom = Symptom.STUCK if cause is Cause.ENGINE_SILENT else Symptom.ERROR
    step = _STEP_OF.get(cause, 2)
    reached = "it never reached a model" if last is None else _reached(case)
    looked = [Looked(1, STEPS[1], symptom.value), Looked(2, STEPS[2], reached)]
    if step > 2:
        looked.append(Looked(step, STEPS[step], case.error))
    evidence = [Evidence("status", case.status), Evidence("took", round(case.total_s, 4), "s")]
    evidence += [Evidence(f"{each.deployment}: {each.error}", round(each.took_s, 4), "s") for each in case.tries]
    if cause is Cause.ENGINE_SILENT and case.silent_s is not None:
        evidence.append(Evidence("silence of the engine", round(case.silent_s, 4), "s"))
    return Diagnosis(
        symptom=symptom,
        step=step,
        cause=cause,
        text=_text(case, cause, reached),
        advice=_ADVICE[cause] if last is not None else _STATUS_ADVICE.get(case.status, _ADVICE[cause]),
        evidence=tuple(evidence),
        looked=tuple(looked),
    )


def _cause(case: Case, last: Try | None) -> Cause:
    if case.error_code in _CODES:
        return _CODES[case.error_code]
    if last is None:
        return Cause.REFUSED
    cause = _FAULTS.get(last.error, Cause.ENGINE_DEAD)
    silent_s = case.silent_s or 0.0
    if cause is Cause.ENGINE_DIED and silent_s > max(_LONG_SILENCE_S, 0.5 * last.took_s):
        return Cause.ENGINE_SILENT
    return cause


def _reached(case: Case) -> str:
    if len(case.tries) == 1:
        return f"it reached {case.tries[0].deployment}"
    return f"it was tried on {len(case.tries)} deployments, one after the other"


def _text(case: Case, cause: Cause, reached: str) -> str:
    given = f"Its client was told {case.status}" if case.status >= 400 else "Its client found in the stream"
    told = f"{given}: {case.error.removesuffix('.')}." if case.error else ""
    if cause is Cause.ENGINE_SILENT:
        silent = f" for {seconds(case.silent_s)}" if case.silent_s is not None else ""
        how = f"{sentence(reached)} The engine was alive, took the request, and said nothing{silent}."
    elif cause is Cause.ENGINE_DIED:
        written = f" after {case.output_tokens:,} tokens" if case.output_tokens else ""
        how = f"{sentence(reached)} The answer had begun and was cut off{written}; the client has a part of it."
    else:
        how = sentence(f"{reached}, and was given up after {seconds(case.total_s)}")
    return f"{how} {told}".strip()
