"""The access log: one line for each request that has ended, or for a share of them; never its text."""

from __future__ import annotations

import logging
import random

from gateway.exchange import Exchange

logger = logging.getLogger("paceline.access")


class AccessLog:
    """Writes it: of the requests that went well ``share``, all others."""

    def __init__(self, share: float = 1.0) -> None:
        self._share = share

    def ended(self, exchange: Exchange) -> None:
        """Write a request's line."""
        if exchange.ended == "done" and self._share < 1.0 and random.random() >= self._share:
            return
        deployment = exchange.deployment
        logger.info(
            "%s %s model=%s caller=%s deployment=%s attempts=%d cache=%s ended=%s after=%.3fs",
            exchange.request_id,
            exchange.incoming.operation,
            exchange.incoming.model,
            exchange.wishes.caller or "-",
            deployment.id if deployment else "-",
            exchange.attempts,
            exchange.cache.decode(),
            exchange.ended,
            exchange.ended_at - exchange.arrived_at,
        )
