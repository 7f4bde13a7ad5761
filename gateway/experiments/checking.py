"""Looks at the form of sampled answers, in a thread: a schema takes its time."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from gateway.exchange import Exchange
from gateway.experiments.assigned import MOST_CHECKED_BYTES, Assigned
from gateway.experiments.form import fault_of
from gateway.experiments.running import Running
from policies.types import Operation

logger = logging.getLogger("paceline.experiments")

MOST_WAITING = 32
"""Further answers are not looked at."""


class Checking:
    """Owns the thread and what waits for it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="answers' form")
        self._waiting: set[asyncio.Task[None]] = set()

    def offer(self, exchange: Exchange, assigned: Assigned) -> None:
        """Look at an answer that came whole, soon."""
        operation, said = exchange.incoming.operation, exchange.said
        if operation is Operation.EMBEDDINGS or len(said) >= MOST_CHECKED_BYTES or len(self._waiting) >= MOST_WAITING:
            return
        self.look(assigned.running, assigned.stage, assigned.arm, assigned.unit, exchange, said)

    def look(self, running: Running, stage: int, arm: int, unit: str, exchange: Exchange, said: bytes) -> None:
        """Look at what was said to a request in an arm's name."""
        work = self._look(running, stage, arm, unit, exchange, said)
        task = asyncio.get_running_loop().create_task(work, name="answer's form")
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def aclose(self) -> None:
        """Drop what waits, and end the thread."""
        for task in tuple(self._waiting):
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)
        self._thread.shutdown(cancel_futures=True)

    async def _look(self, running: Running, stage: int, arm: int, unit: str, exchange: Exchange, said: bytes) -> None:
        incoming = exchange.incoming
        loop = asyncio.get_running_loop()
        fault = await loop.run_in_executor(self._thread, fault_of, incoming.operation, incoming.body, said)
        if fault is None:
            return
        if fault:
            name = running.experiment.arms[arm].name
            logger.debug("experiment %s: an answer of %s %s", running.experiment.name, name, fault)
        running.evidence.note(stage, arm, unit, {"faults": float(bool(fault))})
        running.watch(arm)
