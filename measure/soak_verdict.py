"""From the requests of a soak to a verdict: is this deployment stable, and if not, why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, expm1, log, log1p
from statistics import median
from typing import Any, Final

import msgspec

from measure.soak_trial import Role, Trial
from measure.trend import Trend, by_group, trend

LEAST_REQUESTS: Final = 24
"""Dozens of requests in a row: with fewer, nothing is called stable."""
SLOWER: Final = 0.10
SLOWER_S: Final = 0.02
"""TTFT has drifted when the lower end of its interval is beyond both, over the whole soak."""
MUCH_SLOWER: Final = 0.30
"""A soak has shown that TTFT does not drift when the upper end of its interval is below this or ``SLOWER_S``."""
_STEP: Final = 10
"""To so many requests is rounded up what a next soak needs."""
GROWN: Final = 0.05
GROWN_BYTES: Final = 32 << 20
"""Memory grows when the lower end of its interval is beyond both, over the requests that were made before."""
SAME: Final = 0.75
"""At least this part of the answers to the repeated prompt has to be the same. Not all: what a cache holds of a prompt
changes the size of the batches in which it is read, and so the rounding that decides between two equally likely tokens.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One request that failed: the ``number``-th, its role, the kind of failure and the engine's words."""

    number: int
    role: Role
    kind: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How much something has grown over the soak, as a part of what it was, with its 95 % interval."""

    change: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakVerdict:
    """What a soak has shown. ``reasons`` say why it is not ``stable``; when there was only too little to say so, it is
    not ``conclusive`` either.

    ``requests`` were made of the ``planned`` ones; ``needed`` is how many would probably decide it, 0 where these did.
    ``ttft`` is the drift of the time to the first token with the
    prompt's length taken out; ``memory`` the growth of the engine's process over the last third, to ``memory_bytes``.
    ``same`` of ``repeated`` answers to one greedy prompt were the most frequent one. ``invalid`` requests were made, of
    which the engine ``took`` some as if they were right.
    """

    stable: bool
    conclusive: bool
    reasons: tuple[str, ...]
    requests: int
    planned: int
    needed: int = 0
    failures: tuple[Failure, ...] = ()
    ttft: Change | None = None
    memory: Change | None = None
    memory_bytes: int | None = None
    repeated: int = 0
    same: int = 0
    cancelled: int = 0
    invalid: int = 0
    took: int = 0

    @property
    def kinds(self) -> Counter[str]:
        """How many failures there were of each kind."""
        return Counter(failure.kind for failure in self.failures)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values only, as JSON has them."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain | {"kinds": dict(self.kinds)}


def judge(trials: Sequence[Trial], planned: int, *, gone: bool = False, busy: str = "") -> SoakVerdict:
    """Return the verdict on the requests that were made, of those that were planned.

    ``gone`` says that the engine did not answer any more in the end, ``busy`` what else happened on its machine: then
    a time that grew proves nothing.
    """
    failures = tuple(
        Failure(number=trial.number, role=trial.asked.role, kind=trial.failure, detail=trial.detail)
        for trial in trials
        if trial.failure
    )
    ttft, memory = ttft_drift(trials), memory_growth(trials)
    known = [trial.memory_bytes for trial in trials if trial.memory_bytes is not None]
    answers = [trial.answer for trial in _good(trials, Role.REPEATED)]
    same = max(Counter(answers).values(), default=0)
    good_invalid = _good(trials, Role.INVALID)
    level_s = median([trial.ttft_s for trial in trials if trial.ttft_s] or [0.0])
    slower = _of_ttft(ttft, level_s)
    needed = _needed(ttft, level_s, len(trials))
    faults = [
        _of_failures(failures, len(trials)),
        "it did not come back after the last failure" if gone else "",
        _of_memory(memory, known[-1] if known else 0),
        _of_answers(same, len(answers)),
    ]
    doubts = [_of_length(len(trials)), _of_width(ttft, needed, busy)]
    (doubts if busy else faults).append(f"{slower} while {busy}" if slower and busy else slower)
    conclusive = any(faults) or not any(doubts)
    return SoakVerdict(
        stable=not any((*faults, *doubts)),
        conclusive=conclusive,
        reasons=tuple(reason for reason in (*faults, *doubts) if reason),
        requests=len(trials),
        planned=planned,
        needed=0 if conclusive else max(needed, LEAST_REQUESTS),
        failures=failures,
        ttft=ttft,
        memory=memory,
        memory_bytes=known[-1] if known else None,
        repeated=len(answers),
        same=same,
        cancelled=len(_good(trials, Role.CANCELLED)),
        invalid=len(good_invalid),
        took=sum(trial.output_tokens is not None for trial in good_invalid),
    )


def ttft_drift(trials: Iterable[Trial]) -> Change | None:
    """Return how much longer the time to the first token has become from the first request to the last.

    Requests of the same prompt length and role are compared with each other, so that no law of prefill is needed; those
    with a prompt that was sent before, which a cache may hold, among themselves.
    """
    points = [
        ((trial.asked.role, trial.asked.prompt_tokens, trial.asked.again), float(trial.number), log(trial.ttft_s))
        for trial in trials
        if not trial.failure and trial.ttft_s and trial.asked.role in (Role.ANSWER, Role.REPEATED)
    ]
    steps = [step for _, step, _ in points]
    return _over(trend(by_group(points).values()), max(steps) - min(steps)) if steps else None


def memory_growth(trials: Sequence[Trial]) -> Change | None:
    """Return how much the engine's memory has grown over the requests that were made before.

    Until then it grows by all that is done for the first time: buffers, and caches of prompts, which may be gigabytes.
    """
    counted = [(float(t.number), float(t.memory_bytes)) for t in trials if t.memory_bytes and t.asked.again]
    if not counted:
        return None
    level = median(size for _, size in counted)
    found = trend([[(step, size / level) for step, size in counted]])
    if found is None:
        return None
    span = counted[-1][0] - counted[0][0]
    return Change(change=found.slope * span, low=found.low * span, high=found.high * span)


def _over(found: Trend | None, span: float) -> Change | None:
    """A trend of logarithms, as a change over so many steps."""
    if found is None:
        return None
    return Change(change=expm1(found.slope * span), low=expm1(found.low * span), high=expm1(found.high * span))


def _good(trials: Iterable[Trial], role: Role) -> list[Trial]:
    return [trial for trial in trials if trial.asked.role is role and not trial.failure]


def _of_length(requests: int) -> str:
    return f"only {requests} requests were made, {LEAST_REQUESTS} are needed" if requests < LEAST_REQUESTS else ""


def _of_failures(failures: Sequence[Failure], requests: int) -> str:
    if not failures:
        return ""
    kinds = Counter(failure.kind for failure in failures)
    return f"{len(failures)} of {requests} failed: " + ", ".join(f"{kind} {n}×" for kind, n in kinds.most_common())


def _of_ttft(drift: Change | None, level_s: float) -> str:
    if drift is None or drift.low <= SLOWER or drift.low * level_s <= SLOWER_S:
        return ""
    return f"the time to the first token grew by {drift.change:.0%} ({drift.low:.0%} at least)"


def _needed(drift: Change | None, level_s: float, requests: int) -> int:
    """How many requests would probably tell whether TTFT drifts; 0 where these do.

    The interval of a change over a whole soak narrows with the root of the number of requests. It has to leave one of
    the two limits behind, of which the one that is further from the estimate takes fewer.
    """
    if drift is None or drift.high <= MUCH_SLOWER or drift.high * level_s <= SLOWER_S or _of_ttft(drift, level_s):
        return 0
    estimate, reach = log1p(drift.change), (log1p(drift.high) - log1p(drift.low)) / 2.0
    room = max(log1p(MUCH_SLOWER) - estimate, estimate - log1p(SLOWER))
    return max(requests + _STEP, ceil(requests * (reach / room) ** 2 / _STEP) * _STEP)


def _of_width(drift: Change | None, needed: int, busy: str) -> str:
    if drift is None or not needed:
        return ""
    where = f" while {busy}" if busy else ""
    return (
        f"whether the time to the first token grows is not shown: {drift.change:+.0%}, but anything from "
        f"{drift.low:+.0%} to {drift.high:+.0%}{where}; about {needed} requests would tell"
    )


def _of_memory(growth: Change | None, size: int) -> str:
    if growth is None or growth.low <= GROWN or growth.low * size <= GROWN_BYTES:
        return ""
    return f"its memory grew by {growth.change:.0%} over requests made before, to {size >> 20} MiB"


def _of_answers(same: int, repeated: int) -> str:
    if not repeated or same >= SAME * repeated:
        return ""
    return f"one greedy prompt had the same answer {same} times of {repeated}"
