"""How much a neighbour on the same hardware slows a deployment: timed alone, then beside one that works."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from adapters.base import Adapter
from adapters.errors import EngineError
from measure.occupation import occupied
from measure.probe import Probe
from measure.progress import Progress, silent
from measure.prompts import SEEDS_APART
from measure.records import Beside, Kind, Record, Run
from measure.summary import summarise
from measure.traffic import IDLE_LIMIT_S, Disturbed, Traffic
from policies.types import Capability, Deployment

PROMPT_TOKENS = 64
OUTPUT_TOKENS = 12
RUNS = 3
"""How often each is timed, in turns: one run of a short request says more about the machine's moment than the pair."""
ENOUGH_S = 60.0
"""After so long no further turn begins: where one is this slow, a moment of the machine is little beside it."""
DECODE_TOKENS = 256
PREFILL_TOKENS = 512
"""What the neighbour is given to write, and to read, again and again while the other is timed."""

ALONE = ""
DECODING = "decoding"
PREFILLING = "prefilling"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Member:
    """A deployment and the adapter that reaches it."""

    adapter: Adapter
    deployment: Deployment


def neighbours(deployments: Sequence[Deployment], *, others: int = 1) -> Iterator[tuple[Deployment, Deployment]]:
    """Yield who should be timed beside whom: each beside itself, where several requests run at once there, and beside
    the next ``others`` on the same hardware in the order of ids.

    Two models of one engine instance are no pair: such engines may swap them out for each other.
    """
    able = sorted((d for d in deployments if _generates(d)), key=lambda d: d.id)
    for place, timed in enumerate(able):
        if timed.slots is None or timed.slots > 1:
            yield timed, timed
        circle = able[place + 1 :] + able[:place]
        beside = [d for d in circle if d.hardware.shares(timed.hardware) and d.endpoint != timed.endpoint]
        for neighbour in beside[:others]:
            yield timed, neighbour


async def measure_beside(
    timed: Member,
    neighbour: Member,
    *,
    traffic: Traffic | None = None,
    progress: Progress = silent,
    seed: int | None = None,
    idle_limit_s: float = IDLE_LIMIT_S,
    enough_s: float = ENOUGH_S,
) -> tuple[Record, ...]:
    """Time ``timed`` while ``neighbour`` decodes, and while it prefills; the same member twice means the same engine.

    Takes about twenty seconds on a CPU. Returns a record for each of the two activities, of medians over ``RUNS`` runs,
    or over fewer where they take longer than ``enough_s`` or live traffic left no room for more; none where it left not
    even one of each: the pair is to be tried again later. When an engine failed, the last record has the cause. Nobody
    else may measure on the same hardware meanwhile.
    """
    pair = _Pair(timed, neighbour, seed)
    traffic = traffic or Traffic()
    failed: tuple[Record, ...] = ()
    steps = [activity for _ in range(RUNS) for activity in (ALONE, DECODING, PREFILLING)]
    clock = asyncio.get_running_loop().time
    begun = clock()
    try:
        progress(timed.deployment.id, 0, len(steps), "warming up")
        await traffic.quietly(pair.warm_up, idle_limit_s=idle_limit_s)
        for done, activity in enumerate(steps):
            if activity == ALONE and pair.is_timed and clock() - begun >= enough_s:
                break
            beside = "alone" if activity == ALONE else f"beside {neighbour.deployment.id} {activity}"
            progress(timed.deployment.id, done, len(steps), beside)
            await traffic.quietly(partial(pair.run, activity), idle_limit_s=idle_limit_s)
    except EngineError as error:
        failed = (pair.failure(f"{type(error).__name__}: {error.message}"),)
    except Disturbed:
        _log.debug("%s beside %s: live traffic, later", timed.deployment.id, neighbour.deployment.id)
        if not pair.is_timed:
            return ()
    progress(timed.deployment.id, len(steps), len(steps), "measured")
    return (*pair.records(), *failed)


class _Pair:
    def __init__(self, timed: Member, neighbour: Member, seed: int | None) -> None:
        self._timed = timed
        self._neighbour = neighbour.deployment
        self._probe = Probe(timed.adapter, timed.deployment, seed=seed)
        self._worker = Probe(neighbour.adapter, neighbour.deployment, seed=None if seed is None else seed + SEEDS_APART)
        self._asked = replace(self._probe.asked(PROMPT_TOKENS, OUTPUT_TOKENS), runs=RUNS)
        self._runs: dict[str, list[Run]] = {ALONE: [], DECODING: [], PREFILLING: []}

    async def warm_up(self) -> None:
        for probe in (self._worker, self._probe):
            probe.calibrate(await probe.run(PROMPT_TOKENS, OUTPUT_TOKENS))

    async def run(self, activity: str) -> None:
        """Time one request, alone or beside the neighbour."""
        if activity == ALONE:
            run = await self._probe.run(PROMPT_TOKENS, OUTPUT_TOKENS)
        else:
            async with occupied(self._worker, *self._load(activity)):
                run = await self._probe.run(PROMPT_TOKENS, OUTPUT_TOKENS)
        self._runs[activity].append(run)

    def _load(self, activity: str) -> tuple[int, int]:
        """Prompt and output tokens of the neighbour's requests."""
        half = self._neighbour.context // 2 if self._neighbour.context else PREFILL_TOKENS
        if activity == DECODING:
            return PROMPT_TOKENS // 2, min(DECODE_TOKENS, half)
        return min(PREFILL_TOKENS, half), 1

    @property
    def is_timed(self) -> bool:
        """Whether there is a run of everything."""
        return all(self._runs.values())

    def records(self) -> list[Record]:
        """What has been timed, by activity."""
        return [self._record(activity) for activity in (DECODING, PREFILLING) if self._runs[activity]]

    def _record(self, activity: str) -> Record:
        beside = Beside(
            neighbour="same" if self._timed.deployment.id == self._neighbour.id else "other",
            activity=activity,
            fingerprint=self._neighbour.fingerprint,
            deployment=self._neighbour.id,
            alone=tuple(self._runs[ALONE]),
        )
        return summarise(Kind.PAIR, self._timed.deployment, self._asked, self._runs[activity], beside=beside)

    def failure(self, cause: str) -> Record:
        return summarise(Kind.PAIR, self._timed.deployment, self._asked, [], failed=cause)


def _generates(deployment: Deployment) -> bool:
    return not deployment.capabilities.isdisjoint({Capability.CHAT, Capability.COMPLETION})
