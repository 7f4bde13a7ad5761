"""A request's seconds by stage, from its moments and what its engine tells."""

from __future__ import annotations

from collections.abc import Mapping

from adapters.base import Outcome
from gateway.requests.note import Note, TryNote
from policies.diagnosis.case import Stages
from policies.types import Operation

_WAITED = frozenset({"", "too_many_requests"})
"""Codes of those that never had a place: they waited for one."""


def stages_of(note: Note, neighbours: Mapping[str, float], usual_prefill_s: float | None) -> Stages:
    """Return the stages, which sum up to the request's time.

    ``usual_prefill_s`` is what reading the prompt should take, to tell a queue or a load from it where the engine does
    not; ``None`` when nobody knows.
    """
    total_s = max(0.0, note.ended_at - note.arrived_at)
    known = {"read_s": note.read_s, "wait_s": note.waited_s, "cache_s": note.lookup_s}
    if note.tries:
        known |= _of_attempts(note, neighbours, usual_prefill_s)
    else:
        _without_engine(note, known, total_s)
    rest_s = total_s - sum(known.values())
    if rest_s < 0.0:  # clocks that tick in milliseconds, and a client that read while the engine still wrote
        known["client_s"] = max(0.0, known.get("client_s", 0.0) + rest_s)
        rest_s = 0.0
    return Stages(**{name: round(seconds, 6) for name, seconds in known.items()}, other_s=round(rest_s, 6))


def _without_engine(note: Note, known: dict[str, float], total_s: float) -> None:
    known["client_s"] = min(note.client_s, total_s)
    rest_s = max(0.0, total_s - sum(known.values()))
    if note.cache == b"coalesced":
        known["cache_s"] += rest_s
    elif not note.is_routed and note.cache != b"hit" and note.error_code in _WAITED:
        known["wait_s"] += rest_s
    elif note.cache != b"hit":
        known["route_s"] = rest_s


def _of_attempts(note: Note, neighbours: Mapping[str, float], usual_prefill_s: float | None) -> dict[str, float]:
    first, last = note.tries[0], note.tries[-1]
    spent = {"retry_s": 0.0, "load_s": max(0.0, last.started_at - last.chosen_at)}
    spent["route_s"] = max(0.0, first.chosen_at - note.arrived_at - note.read_s - note.waited_s - note.lookup_s)
    for before, after in zip(note.tries, note.tries[1:], strict=False):
        stage = "load_s" if before.error == "Loading" else "retry_s"
        spent[stage] += after.chosen_at - before.chosen_at
    end = last.ended_at or note.ended_at
    outcome = last.outcome or Outcome()
    connected_at = outcome.connected_at or last.started_at
    spent["connect_s"] = connected_at - last.started_at
    in_engine_s = max(0.0, end - connected_at)
    read_s, wrote_s = _read_and_wrote(note, outcome, connected_at, in_engine_s)
    inside_s = min(note.client_s, wrote_s or 0.0) if note.streamed and not note.is_flight else 0.0
    spent["client_s"] = inside_s + min(max(0.0, note.client_s - inside_s), max(0.0, note.ended_at - end))
    if read_s is None or wrote_s is None:
        spent["engine_s"] = in_engine_s
        return spent
    spent["decode_s"] = max(0.0, wrote_s - inside_s)
    queue_s, load_s, prefill_s = _until_first_token(last, outcome, read_s, neighbours, usual_prefill_s)
    spent["queue_s"], spent["prefill_s"] = queue_s, prefill_s
    spent["load_s"] += load_s
    return spent


def _read_and_wrote(
    note: Note, outcome: Outcome, connected_at: float, in_engine_s: float
) -> tuple[float | None, float | None]:
    """Return the seconds until the first token and from there on; ``None`` where nobody tells them apart."""
    if outcome.first_token_at is not None:
        until_s = max(0.0, outcome.first_token_at - connected_at)
        return until_s, max(0.0, in_engine_s - until_s)
    if note.streamed or note.operation == Operation.EMBEDDINGS:
        return in_engine_s, 0.0
    if outcome.prefill_s is not None and outcome.decode_s is not None:
        wrote_s = min(outcome.decode_s, in_engine_s)
        return in_engine_s - wrote_s, wrote_s
    return None, None


def _until_first_token(
    last: TryNote, outcome: Outcome, until_s: float, neighbours: Mapping[str, float], usual_s: float | None
) -> tuple[float, float, float]:
    """Split the time until the first token into queue, load and prefill."""
    load_s = min(outcome.load_s or 0.0, until_s)
    left_s = until_s - load_s
    is_load_hidden = last.was_cold and outcome.load_s is None
    if outcome.prefill_s is not None:
        prefill_s = min(outcome.prefill_s, left_s)
        before_s = left_s - prefill_s
        return (0.0, before_s, prefill_s) if is_load_hidden else (before_s, load_s, prefill_s)
    if outcome.queue_s is not None:
        queue_s = min(outcome.queue_s, left_s)
        return queue_s, load_s, left_s - queue_s
    if usual_s is None or left_s <= usual_s:
        return 0.0, load_s, left_s
    if is_load_hidden:
        return 0.0, left_s - usual_s, usual_s
    slots = last.candidate.deployment.slots
    others = neighbours.get("prefill_same_decoding", 0.0) + neighbours.get("prefill_same_prefilling", 0.0)
    if slots is not None and others > slots - 0.5:
        return left_s - usual_s, load_s, usual_s
    return 0.0, load_s, left_s
