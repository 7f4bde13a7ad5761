"""From what was noted of a request to the case that the diagnosis reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from adapters.hardware import hardware_facts
from gateway.requests.beside import Stay, beside
from gateway.requests.note import Note, TryNote
from gateway.requests.stages import stages_of
from policies.diagnosis.case import Alone, Case, Ended, Expected, Resources, Try
from policies.predict import Predictor
from policies.types import Operation, RequestFacts


def alone(predictor: Predictor, note: Note, now: float) -> Alone | None:
    """Return what the request takes with nothing beside it, for the tokens that it turned out to have.

    ``None`` when its deployment is not measured, or its engine has not counted. Cheap: it runs in the event loop.
    """
    if not note.tries:
        return None
    last = note.tries[-1]
    profile, outcome = predictor.profile(last.candidate.deployment.fingerprint), last.outcome
    if profile is None or outcome is None or outcome.prompt_tokens is None:
        return None
    prompt, written = outcome.prompt_tokens, outcome.written
    held = profile.opening_tokens if outcome.cached_tokens is None else outcome.cached_tokens
    writes = note.operation != Operation.EMBEDDINGS
    return Alone(
        prefill_s=profile.speed.prefill_s(max(1, prompt - held), now, held),
        decode_s=profile.speed.decode_s(prompt, written, now) if writes else 0.0,
    )


def case_of(
    note: Note,
    at: float,
    alone: Alone | None,
    resources: Resources | None,
    stays: Sequence[Stay] = (),
    neighbours: Mapping[str, float] | None = None,
) -> Case:
    """Return the case of a request that arrived ``at`` seconds since the epoch; ``neighbours`` of one that runs.

    ``stays`` are those of others that may have been beside it.
    """
    last = note.tries[-1] if note.tries else None
    if neighbours is None:
        neighbours = last.lease.neighbours if last is not None else {}
    expected = _expected(last, note.facts)
    usual_s = alone.prefill_s if alone is not None else expected.prefill_s if expected is not None else None
    failed = last is not None and note.ended == Ended.FAILED
    deployment = None if last is None else last.candidate.deployment
    outcome = None if last is None else last.outcome
    return Case(
        request_id=note.request_id,
        at=at,
        operation=note.operation,
        model=note.model,
        caller=note.caller,
        ended=Ended(note.ended),
        streamed=note.streamed,
        total_s=round(note.ended_at - note.arrived_at, 6),
        ttft_s=None if note.first_token_at is None else round(note.first_token_at - note.arrived_at, 6),
        stages=stages_of(note, neighbours, usual_s),
        status=note.status,
        error=note.error or (last.message if last is not None and failed else ""),
        error_code=note.error_code,
        cache=note.cache.decode(),
        deployment=note.kept_by if deployment is None else deployment.id,
        engine="" if deployment is None else deployment.engine,
        precision="" if deployment is None else deployment.precision.value,
        reason=note.reason,
        local=deployment is not None and deployment.hardware.host == hardware_facts().host,
        on_gpu=deployment is not None and deployment.hardware.has_accelerator,
        slots=None if deployment is None else deployment.slots,
        context=None if deployment is None else deployment.context,
        was_cold=last is not None and last.was_cold,
        tries=tuple(_try(each, note.ended_at) for each in note.tries),
        expected=expected,
        alone=alone,
        prompt_tokens=None if outcome is None else outcome.prompt_tokens,
        cached_tokens=None if outcome is None else outcome.cached_tokens,
        output_tokens=_written(note, last),
        max_output=note.facts.max_output,
        finish_reason=(outcome.finish_reason or "") if outcome is not None else "",
        read_tokens=None if outcome is None else outcome.prefill_done,
        silent_s=_silent_s(note, last),
        neighbours={name: round(number, 3) for name, number in neighbours.items()},
        beside=beside(note, stays) if any(neighbours.values()) else (),
        outside=note.outside,
        resources=resources,
    )


def _expected(last: TryNote | None, facts: RequestFacts) -> Expected | None:
    estimate = None if last is None else last.candidate.estimate
    if last is None or estimate is None:
        return None
    return Expected(
        queue_s=estimate.queue_s,
        load_s=estimate.load_s,
        prefill_s=estimate.prefill_s,
        decode_s=estimate.decode_s,
        spread=estimate.spread,
        prompt_tokens=facts.prompt_tokens,
        cached_tokens=last.candidate.cached_tokens,
        output_tokens=0 if facts.operation is Operation.EMBEDDINGS else facts.expected_output,
        company=estimate.company,
    )


def _try(each: TryNote, now: float) -> Try:
    took_s = (each.ended_at or now) - each.chosen_at
    return Try(deployment=each.candidate.deployment.id, took_s=round(took_s, 6), error=each.error, message=each.message)


def _written(note: Note, last: TryNote | None) -> int | None:
    """Tokens of the answer: the engine's count, else that of the events that carried some."""
    outcome = None if last is None else last.outcome
    if outcome is None or note.operation == Operation.EMBEDDINGS:
        return None
    return outcome.output_tokens if outcome.output_tokens is not None else outcome.output_chunks or None


def _silent_s(note: Note, last: TryNote | None) -> float | None:
    """Seconds since the engine's last sign, at the end of a request that was not answered whole."""
    if last is None or note.ended == Ended.DONE:
        return None
    outcome = last.outcome
    sign_at = last.started_at if outcome is None else outcome.last_token_at or outcome.connected_at or last.started_at
    return round(max(0.0, (last.ended_at or note.ended_at) - sign_at), 6)
