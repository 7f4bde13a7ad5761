"""Step 2, the whole log: did it reach the model late, wait in a queue, or wait for its client?"""

from __future__ import annotations

from policies.diagnosis.case import Case, Expected
from policies.diagnosis.verdict import Cause, Evidence, Finding
from policies.diagnosis.words import count, listed, seconds, share

STALLED = 0.25
"""Share of a second from which on waits for a disk are worth telling."""


def in_the_log(case: Case, expected: Expected) -> list[Finding]:
    """Return what held the request up before, between and after the work of the model."""
    stages = case.stages
    found = [
        _finding(
            Cause.SLOW_UPLOAD,
            stages.read_s,
            "went by until the client had sent all of its request",
            "Look at the client and its network; images and documents are better sent once and referred to.",
        ),
        _finding(
            Cause.GATEWAY_QUEUE,
            stages.wait_s,
            "went by in this gateway's queue: all places (or those of its key) were taken",
            "Raise limits.max_concurrent or limits.per_key if the engines can take more, or add a deployment.",
        ),
        _finding(
            Cause.CACHE,
            stages.cache_s,
            "went by with the shared cache",
            "Look at the cache's server and network; cache.lookup_ms bounds this wait.",
        ),
        _finding(
            Cause.GATEWAY,
            stages.route_s + stages.other_s,
            "went by in the gateway itself (authentication, reading, routing)",
            "Look at this machine's load: `paceline top`, and other processes beside Paceline.",
        ),
        _retries(case),
        _finding(
            Cause.CONNECT,
            stages.connect_s,
            f"went by until {case.deployment} had accepted a connection",
            "Look at the network to the engine, and whether it accepts as many connections as are made.",
        ),
        _queue(case, expected),
        _load(case, expected),
        _finding(
            Cause.SLOW_READER,
            stages.client_s,
            "the answer was there and the client did not read it",
            "Look at the client: it reads more slowly than the engine writes, or its network does.",
            is_clause=True,
        ),
    ]
    return [finding for finding in found if finding.seconds > 0.0]


def _finding(cause: Cause, spent_s: float, says: str, advice: str, *, is_clause: bool = False) -> Finding:
    words = f"for {seconds(spent_s)} {says}" if is_clause else f"{seconds(spent_s)} {says}"
    evidence = (Evidence(cause.value.replace("_", " "), round(spent_s, 4), "s", 0.0),)
    return Finding(2, cause, spent_s, words, advice, evidence)


def _retries(case: Case) -> Finding:
    failed = [each for each in case.tries[:-1] if each.error != "Loading"]
    who = listed(f"{each.deployment} ({each.message or each.error} after {seconds(each.took_s)})" for each in failed)
    evidence = (
        Evidence("attempts", len(case.tries), "", 1.0),
        *(Evidence(f"{each.deployment}: {each.error}", round(each.took_s, 4), "s") for each in failed),
    )
    says = (
        f"{seconds(case.stages.retry_s)} went by before {case.deployment} was asked, since it failed elsewhere: {who}"
    )
    advice = "Look at the deployment that failed: `paceline doctor`, and its engine's log."
    return Finding(2, Cause.RETRY, case.stages.retry_s, says, advice, evidence)


def _queue(case: Case, expected: Expected) -> Finding:
    spent_s = case.stages.queue_s
    others = case.neighbours.get("prefill_same_decoding", 0.0) + case.neighbours.get("prefill_same_prefilling", 0.0)
    beside = f", {others:.1f} others were there in the mean" if others >= 0.05 else ""
    slots = f" on {count(case.slots, 'slot')}" if beside and case.slots else ""
    says = f"{seconds(spent_s)} went by in the queue of {case.deployment} before it began to read{beside}{slots}"
    evidence = [Evidence("queue in the engine", round(spent_s, 4), "s", round(expected.queue_s, 4))]
    if others:
        evidence.append(Evidence("others in the engine until the first token", round(others, 2)))
    if case.slots:
        evidence.append(Evidence("slots", case.slots))
    advice = "Give the engine more slots if its memory allows, send fewer requests at once, or add a deployment."
    return Finding(2, Cause.ENGINE_QUEUE, spent_s - expected.queue_s, says, advice, tuple(evidence))


def _load(case: Case, expected: Expected) -> Finding:
    spent_s = case.stages.load_s
    evidence = [Evidence("model load", round(spent_s, 4), "s", round(expected.load_s, 4))]
    says = f"{seconds(spent_s)} went by until {case.deployment} had loaded its model"
    stall = case.resources.disk_stall if case.local and case.resources is not None else None
    if stall is not None and stall >= STALLED:
        says += f", while processes waited for the disk for up to {share(stall)} of a second"
        evidence.append(Evidence("waits for the disk", round(stall, 3), "of a second"))
    advice = "Keep the model loaded (Ollama: OLLAMA_KEEP_ALIVE), or let fewer models share the memory."
    return Finding(2, Cause.COLD_LOAD, spent_s - expected.load_s, says, advice, tuple(evidence))
