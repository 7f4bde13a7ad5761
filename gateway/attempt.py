"""One try of one request on one deployment: counted from the moment it is chosen until its last byte."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from adapters.base import Answer, Call, Outcome
from adapters.errors import EngineError, Loading
from gateway.unseen import UnseenProgress
from policies.breaker import Pass
from policies.lease import Lease
from policies.types import Candidate, Health, Operation

if TYPE_CHECKING:
    from gateway.engine import Engine
    from gateway.exchange import Exchange
    from gateway.fleet import Fleet


class Attempt:
    """Owns the upstream call and its lease; exactly one of ``done``, ``fail`` and ``cancel`` ends it.

    ``leave`` is the breaker's pass, ``new_prompt`` says that the deployment holds nothing of the prompt, ``span_id`` is
    what the engine was told as its caller where traces are made.
    ``delivered`` is set by whoever hands the answer's bytes to the client. ``chosen_at``, ``started_at`` (sent, once a
    load was waited for), ``opened_at`` (the engine has answered with a head) and ``ended_at`` are ``loop.time()``, 0
    as long as they are not reached.
    """

    __slots__ = (
        "_answer",
        "_fleet",
        "_lease",
        "_loop",
        "_prefilling",
        "_unseen",
        "call",
        "candidate",
        "chosen_at",
        "delivered",
        "ended_at",
        "engine",
        "error",
        "exchange",
        "leave",
        "new_prompt",
        "opened_at",
        "span_id",
        "started_at",
        "was_cold",
    )

    def __init__(
        self,
        fleet: Fleet,
        engine: Engine,
        exchange: Exchange,
        candidate: Candidate,
        call: Call,
        lease: Lease,
        leave: Pass,
        *,
        was_cold: bool,
        new_prompt: bool,
        span_id: str = "",
    ) -> None:
        self._fleet = fleet
        self._loop = asyncio.get_running_loop()
        self._answer: Answer | None = None
        self._prefilling = True
        self._unseen: UnseenProgress | None = None
        self.engine = engine
        self.exchange = exchange
        self.candidate = candidate
        self.call = call
        self._lease = lease
        self.leave = leave
        self.was_cold = was_cold
        self.new_prompt = new_prompt
        self.span_id = span_id
        self.chosen_at = self.started_at = self._loop.time()
        self.opened_at = 0.0
        self.ended_at = 0.0
        self.error: EngineError | None = None
        self.delivered = False

    @property
    def outcome(self) -> Outcome | None:
        """What the answer has shown so far."""
        return None if self._answer is None else self._answer.outcome

    @property
    def lease(self) -> Lease:
        """Its entry in the ledger."""
        return self._lease

    @property
    def neighbours(self) -> Mapping[str, float]:
        """Who was beside it, once it has ended (``Observation.neighbours``)."""
        return self._lease.neighbours

    async def open(self) -> None:
        """Send the request; a deployment that is loading is waited for first. Raises ``EngineError``."""
        if self.engine.health is Health.LOADING:
            left_s = self.exchange.left_s()
            if not await self._fleet.wait_until_loaded(self.candidate.deployment, left_s):
                raise Loading("the model is still loading", engine=self.engine.name)
        self.started_at = self._loop.time()
        adapter, call, estimate = self.engine.adapter, self.call, self.candidate.estimate
        is_seen = call.stream or adapter.always_stream or call.operation is Operation.EMBEDDINGS
        if estimate is not None and not is_seen:
            self._unseen = UnseenProgress(self._lease, estimate, self.exchange.facts.expected_output)
        self._answer = await adapter.send(call)
        self.opened_at = self._loop.time()

    def keep_events(self, kept: list[bytes]) -> None:
        """Leave there the events that a joined answer is made of; nothing of any other one."""
        assert self._answer is not None
        self._answer.kept = kept

    async def read(self) -> bytes | None:
        """Return the next bytes for the client and keep the ledger current. Raises ``EngineError``."""
        assert self._answer is not None
        data = await self._answer.read()
        outcome = self._answer.outcome
        if self._prefilling:
            if outcome.first_token_at is not None:
                self._prefilling = False
                self._lease.first_token(self._loop.time())
                self.exchange.first_token_at = outcome.first_token_at
            elif outcome.prefill_done is not None:
                self._lease.read(outcome.prefill_done)
        else:
            self._lease.wrote(outcome.output_chunks)
        return data

    def done(self) -> None:
        """The answer came whole."""
        self._end()
        self._fleet.served(self)

    def fail(self, error: EngineError) -> None:
        """The engine failed or refused."""
        self.error = error
        self._end()
        self._fleet.failed(self, error)

    def cancel(self) -> None:
        """The client left, or we stop."""
        self._end()
        self._fleet.cancelled(self)

    def _end(self) -> None:
        self.ended_at = self._loop.time()
        if self._unseen is not None:
            self._unseen.end()
        if self._answer is not None:
            self._answer.close()
        self._lease.close(self.ended_at)
