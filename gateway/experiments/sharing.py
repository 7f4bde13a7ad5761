"""Gateways that share a Redis agree on which experiments run, with which shares: a small hash, looked at each second.

Of two states of an experiment the one with the higher version holds. A gateway that knows a higher one than it finds
writes it, so that they agree a few seconds after any change, whatever was lost on the way.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

import msgspec

from cache.breaker import StoreError
from cache.redis_store import RedisStore
from gateway.experiments.codec import from_shared, to_shared
from gateway.experiments.running import Running, State
from policies.experiment import Experiment

logger = logging.getLogger("paceline.experiments")

KEY = "experiments"


class Sharing:
    """The hash in the cache's store. No request ever waits for it."""

    def __init__(self, remote: RedisStore) -> None:
        self._remote = remote
        self._failed = False

    async def exchange(self, known: Mapping[str, Running], gone: Collection[str]) -> list[tuple[Experiment, State]]:
        """Tell the others what is newer here and what is gone, and return what is newer there.

        A store that fails leaves all as it is, with one log line.
        """
        key = self._remote.prefix + KEY
        try:
            connection = self._remote.connection
            if gone:
                await connection.ask("HDEL", key, *gone)
            newer, behind = _compare(known, _pairs(await connection.ask("HGETALL", key)))
            for running in behind:
                await connection.ask("HSET", key, running.experiment.name, to_shared(running))
        except StoreError as error:
            if not self._failed:
                logger.warning("other gateways cannot be told of experiments: %s", error)
            self._failed = True
            return []
        self._failed = False
        return newer


def _compare(
    known: Mapping[str, Running], there: Mapping[str, bytes]
) -> tuple[list[tuple[Experiment, State]], list[Running]]:
    """Return what is newer there, and what is newer here."""
    newer = []
    behind = dict(known)
    for name, data in there.items():
        try:
            experiment, state = from_shared(data)
        except msgspec.DecodeError as error:
            logger.debug("what another gateway says of an experiment cannot be read: %s", error)
            continue
        running = known.get(name)
        if running is not None and running.state.version >= state.version:
            if running.state.version == state.version:
                del behind[name]
            continue
        behind.pop(name, None)
        newer.append((experiment, state))
    return newer, list(behind.values())


def _pairs(answer: object) -> dict[str, bytes]:
    """Redis tells a hash as a map or as one list, by protocol version."""
    if isinstance(answer, dict):
        items = list(answer.items())
    elif isinstance(answer, list):
        items = list(zip(answer[::2], answer[1::2], strict=True))
    else:
        items = []
    return {name.decode(): data for name, data in items}
