"""A request without an end: one that runs, or whose client left before the answer was whole."""

from __future__ import annotations

from policies.diagnosis.case import Case, Ended, Expected
from policies.diagnosis.slow import margin_s, prediction
from policies.diagnosis.verdict import STEPS, Cause, Diagnosis, Evidence, Looked, Symptom
from policies.diagnosis.words import seconds, sentence

_PATIENCE_S = 10.0
"""How long an engine that is not measured may say nothing."""
_TOKENS_LATE = 20
_LEAST_SILENCE_S = 1.0
"""A stream has stopped when nothing came for so many times the time of a token, and for so long at least."""

_ADVICE = {
    Cause.GATEWAY_QUEUE: "Raise limits.max_concurrent or limits.per_key if the engines can take more.",
    Cause.ENGINE_QUEUE: "Give the engine more slots if its memory allows, send fewer at once, or add a deployment.",
    Cause.COLD_LOAD: "Keep the model loaded, or let fewer models share the memory.",
    Cause.ENGINE_SILENT: "Look at the engine: its log, its process, and the machine that it runs on.",
    Cause.LONG_PROMPT: "Send a shorter prompt, or one that begins as earlier ones did.",
    Cause.LONG_ANSWER: "Set max_tokens to what is needed.",
    Cause.SLOW_READER: "Look at the client: it does not read what has come.",
    Cause.CLIENT_LEFT: "Give the client a longer time limit, or have it stream.",
    Cause.AS_PREDICTED: "Wait: there is nothing to put right.",
    Cause.GATEWAY: "Look at this machine's load: `paceline top`, and other processes beside Paceline.",
}


def unfinished(case: Case) -> Diagnosis:
    """Return what such a request waits for, or waited for when its client left."""
    expected = prediction(case)
    cause, says = _waiting_for(case, expected)
    running = case.ended is Ended.RUNNING
    if cause is Cause.AS_PREDICTED and not running:
        cause = Cause.CLIENT_LEFT
    stands = "It runs" if running else "Its client left"
    predicted = f"; {seconds(expected.total_s)} were predicted for all of it" if case.expected is not None else ""
    text = f"{stands}, after {seconds(case.total_s)}{predicted}. {sentence(says)}"
    symptom = _symptom(case, cause)
    step = 0 if cause in (Cause.AS_PREDICTED, Cause.CLIENT_LEFT) else 3 if cause in _BY_LENGTH else 2
    looked = [Looked(1, STEPS[1], symptom.value)]
    looked += [Looked(number, STEPS[number], says if number == step else "nothing") for number in range(2, step + 1)]
    return Diagnosis(
        symptom=symptom,
        step=step,
        cause=cause,
        text=text,
        advice=_ADVICE[cause],
        evidence=_evidence(case, expected),
        excess_s=round(case.total_s - expected.total_s, 4) if case.expected is not None else None,
        looked=tuple(looked),
    )


_BY_LENGTH = (Cause.LONG_PROMPT, Cause.LONG_ANSWER)


def _symptom(case: Case, cause: Cause) -> Symptom:
    if case.ended is Ended.RUNNING:
        if cause is Cause.AS_PREDICTED:
            return Symptom.NONE
        return Symptom.SLOW if cause in (*_BY_LENGTH, Cause.SLOW_READER) else Symptom.STUCK
    if case.ttft_s is None:
        return Symptom.NO_OUTPUT
    return Symptom.STUCK if cause is Cause.ENGINE_SILENT else Symptom.NONE


def _waiting_for(case: Case, expected: Expected) -> tuple[Cause, str]:
    stages, late_s = case.stages, margin_s(case, expected)
    if stages.wait_s > max(late_s, 0.5 * case.total_s):
        return Cause.GATEWAY_QUEUE, f"for {seconds(stages.wait_s)} of that there was no place for it in this gateway"
    if stages.load_s > expected.load_s + late_s and stages.load_s > 0.5 * case.total_s:
        return Cause.COLD_LOAD, f"for {seconds(stages.load_s)} of that the model was being loaded"
    if not case.asked_an_engine:
        return Cause.AS_PREDICTED, "no engine has been asked yet"
    return _no_token_yet(case, expected) if case.ttft_s is None else _writing(case, expected)


def _no_token_yet(case: Case, expected: Expected) -> tuple[Cause, str]:
    stages, name = case.stages, case.deployment
    asked_s = stages.queue_s + stages.prefill_s + stages.engine_s
    patience_s = _PATIENCE_S if case.expected is None else expected.ttft_s + margin_s(case, expected)
    if asked_s <= patience_s:
        waits = (
            "" if case.expected is None else f", and {seconds(expected.ttft_s)} were predicted until the first token"
        )
        return Cause.AS_PREDICTED, f"the deployment {name} was asked {seconds(asked_s)} before{waits}"
    if case.read_tokens:
        return (
            Cause.LONG_PROMPT,
            f"the deployment {name} has read {case.read_tokens:,} tokens of the prompt in {seconds(asked_s)}",
        )
    others = case.neighbours.get("same_decoding", 0.0) + case.neighbours.get("same_prefilling", 0.0)
    if case.slots is not None and others >= case.slots:
        return Cause.ENGINE_QUEUE, (
            f"the deployment {name} was asked {seconds(asked_s)} before, and has {others:.0f} others "
            f"on its {case.slots} slots"
        )
    return Cause.ENGINE_SILENT, (
        f"the deployment {name} took the request and has said nothing for {seconds(asked_s)}, "
        f"where a first token was expected after {seconds(patience_s)} at most"
    )


def _writing(case: Case, expected: Expected) -> tuple[Cause, str]:
    silent_s = case.silent_s or 0.0
    per_token_s = expected.decode_s / max(1, expected.output_tokens - 1)
    if case.stages.client_s > 0.5 * case.total_s:
        return Cause.SLOW_READER, f"for {seconds(case.stages.client_s)} of that its client read nothing"
    if silent_s > max(_LEAST_SILENCE_S, _TOKENS_LATE * per_token_s):
        return Cause.ENGINE_SILENT, (
            f"the deployment {case.deployment} has stopped in the middle of its answer: "
            f"nothing came for {seconds(silent_s)}, after {case.output_tokens or 0:,} tokens"
        )
    if case.expected is not None and (case.output_tokens or 0) > 1.5 * expected.output_tokens:
        return Cause.LONG_ANSWER, (
            f"the answer has {case.output_tokens:,} tokens by now, where {expected.output_tokens:,} were expected"
        )
    return Cause.AS_PREDICTED, f"{case.output_tokens or 0:,} tokens of the answer had come"


def _evidence(case: Case, expected: Expected) -> tuple[Evidence, ...]:
    predicted = case.expected is not None
    evidence = [Evidence("so far", round(case.total_s, 4), "s", round(expected.total_s, 4) if predicted else None)]
    if case.ttft_s is not None:
        evidence.append(Evidence("first token", round(case.ttft_s, 4), "s", expected.ttft_s if predicted else None))
    if case.silent_s is not None:
        evidence.append(Evidence("silence of the engine", round(case.silent_s, 4), "s"))
    if case.output_tokens:
        evidence.append(Evidence("answer so far", case.output_tokens, "tokens", float(expected.output_tokens)))
    if case.stages.wait_s:
        evidence.append(Evidence("gateway queue", round(case.stages.wait_s, 4), "s", 0.0))
    return tuple(evidence)
