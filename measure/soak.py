"""A soak: many requests in a row at one deployment, whatever becomes of each of them."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from adapters.base import Adapter, Answer
from adapters.errors import EngineError, Rejected, TimedOut
from adapters.process import present_memory
from measure.host_watch import HostWatch
from measure.progress import Progress, silent
from measure.soak_plan import plan
from measure.soak_request import call_of, operation_of, text_failure, text_of
from measure.soak_trial import Asked, Role, Trial
from measure.soak_verdict import SoakVerdict, judge
from policies.types import Deployment

REQUESTS = 50
REQUEST_LIMIT_S = 120.0
"""A request that takes longer has failed."""
FIRST_LIMIT_S = 600.0
"""The first one may have to wait for the model to be loaded."""
RECOVERY_LIMIT_S = 60.0
"""So long an engine that failed may take until it answers again; then the soak ends."""
RECOVERY_EVERY_S = 0.5


class Soak:
    """Asks one deployment, one request after the other. ``trials`` grows meanwhile, so that an end in the middle, by
    cancellation too, leaves what was done."""

    def __init__(
        self,
        adapter: Callable[[], Adapter],
        deployment: Deployment,
        *,
        requests: int = REQUESTS,
        pid: Callable[[], int | None] = lambda: None,
        seed: int | None = None,
    ) -> None:
        """``adapter`` returns the one to send with now, since an engine may be started anew, and may raise
        ``EngineError``; ``pid`` returns the engine's process, where it is on this machine. Raises
        ``ValueError`` for a deployment of which nothing can be asked."""
        self.deployment = deployment
        self.trials: list[Trial] = []
        self.plan = plan(requests, deployment.context)
        self._adapter = adapter
        self._operation = operation_of(deployment)
        self._pid = pid
        self._busy = ""
        self._gone = False
        # By chance: the engine may still hold what an earlier soak sent.
        self._seed = random.randrange(1_000_000) if seed is None else seed

    @property
    def verdict(self) -> SoakVerdict:
        """The verdict on what was done so far."""
        return judge(self.trials, len(self.plan), gone=self._gone, busy=self._busy)

    async def run(self, progress: Progress = silent) -> SoakVerdict:
        """Make all requests. What goes wrong stands in the verdict; a dead engine that stays dead ends the soak."""
        async with HostWatch(self._pid, here=self._pid() is not None) as watch:
            await self._run(progress)
        self._busy = "" if watch.machine is None else watch.machine.busy
        progress(self.deployment.id, len(self.plan), len(self.plan), "done")
        return self.verdict

    async def _run(self, progress: Progress) -> None:
        for number, asked in enumerate(self.plan):
            progress(self.deployment.id, number, len(self.plan), _told(asked))
            trial = await self._try(number, asked)
            self.trials.append(trial)
            if trial.failure and not await self._recovered():
                self._gone = True
                break

    async def _try(self, number: int, asked: Asked) -> Trial:
        clock = asyncio.get_running_loop().time
        begun = clock()
        limit_s = REQUEST_LIMIT_S if number else FIRST_LIMIT_S
        try:
            async with asyncio.timeout(limit_s):
                trial = await self._ask(number, asked, begun)
        except TimeoutError:
            trial = _failed(number, asked, TimedOut(f"no answer within {limit_s:g} s"))
        except Rejected as error:
            refused = asked.role is Role.INVALID
            trial = Trial(number=number, asked=asked) if refused else _failed(number, asked, error)
        except EngineError as error:
            trial = _failed(number, asked, error)
        pid = self._pid()
        memory_bytes = None if pid is None else await asyncio.to_thread(present_memory, pid)
        return replace(trial, total_s=clock() - begun, memory_bytes=memory_bytes)

    async def _ask(self, number: int, asked: Asked, begun: float) -> Trial:
        answer = await self._adapter().send(
            call_of(asked, self.deployment, self._operation, self._seed + number - asked.again)
        )
        try:
            data = await _read(answer, asked)
        finally:
            answer.close()
        if asked.role is Role.CANCELLED:
            return Trial(number=number, asked=asked)
        outcome = answer.outcome
        text = text_of(answer, data)
        first = outcome.first_token_at
        return Trial(
            number=number,
            asked=asked,
            failure="" if asked.role is Role.INVALID else text_failure(text),
            prompt_tokens=outcome.prompt_tokens,
            output_tokens=outcome.written,
            ttft_s=None if first is None else first - begun,
            answer=text,
        )

    async def _recovered(self) -> bool:
        """Wait until the engine describes itself again. Returns whether it did in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(RECOVERY_LIMIT_S):
                while True:
                    with suppress(EngineError):
                        await self._adapter().describe()
                        return True
                    await asyncio.sleep(RECOVERY_EVERY_S)
        return False


async def _read(answer: Answer, asked: Asked) -> bytes:
    """Read to the end; as one whose client leaves: until the answer has begun, or at once."""
    leaves = asked.role is Role.CANCELLED
    pieces: list[bytes] = []
    while not (leaves and (asked.early or answer.outcome.first_token_at is not None)):
        piece = await answer.read()
        if piece is None:
            break
        pieces.append(piece)
    return b"".join(pieces)


def _failed(number: int, asked: Asked, error: EngineError) -> Trial:
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).lower()
    return Trial(number=number, asked=asked, failure=kind, detail=error.message)


def _told(asked: Asked) -> str:
    if asked.role is Role.INVALID:
        return f"invalid: {asked.fault}"
    return f"{asked.role}, {asked.prompt_tokens} tokens"
