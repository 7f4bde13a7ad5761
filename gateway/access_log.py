"""The access log: one line for each request that has ended, never its text."""

from __future__ import annotations

import logging

from gateway.exchange import Exchange

logger = logging.getLogger("paceline.access")


class AccessLog:
    """Writes it."""

    def ended(self, exchange: Exchange) -> None:
        """Write a request's line."""
        deployment = exchange.deployment
        logger.info(
            "%s %s model=%s caller=%s deployment=%s attempts=%d ended=%s after=%.3fs",
            exchange.request_id,
            exchange.incoming.operation,
            exchange.incoming.model,
            exchange.wishes.caller or "-",
            deployment.id if deployment else "-",
            exchange.attempts,
            exchange.ended,
            exchange.ended_at - exchange.arrived_at,
        )
