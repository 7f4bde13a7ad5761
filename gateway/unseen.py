"""The progress of an answer that comes as one body: nothing of it is seen, so it is taken to go as predicted."""

from __future__ import annotations

import asyncio
from typing import Final

from policies.lease import Lease
from policies.types import Estimate

_STEPS: Final = 4
"""How often the ledger hears of such an answer while it is written."""


class UnseenProgress:
    """Moves a lease on by a clock, from the moment that its request is sent until ``end``.

    Without it such a request would count as prefilling for all of its life, and others would be predicted to stand
    beside a prompt that is never read. ``output_tokens`` is what the answer is expected to have.
    """

    __slots__ = ("_lease", "_loop", "_step", "_step_s", "_timer", "_tokens")

    def __init__(self, lease: Lease, estimate: Estimate, output_tokens: int) -> None:
        self._lease = lease
        self._tokens = output_tokens
        self._step = 0
        self._step_s = estimate.decode_s / _STEPS
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(estimate.ttft_s, self._first_token)

    def end(self) -> None:
        """The answer is there, or will not come."""
        self._timer.cancel()

    def _first_token(self) -> None:
        self._lease.first_token(self._loop.time())
        self._timer = self._loop.call_later(self._step_s, self._wrote)

    def _wrote(self) -> None:
        self._step += 1
        self._lease.wrote(self._tokens * self._step // _STEPS)
        if self._step < _STEPS:
            self._timer = self._loop.call_later(self._step_s, self._wrote)
