"""redis-py's clients for an address. Its package is imported when one is made: that takes a good part of a second."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

from cache.address import Address
from cache.breaker import StoreError

CONNECT_LIMIT_S: Final = 1.0
ANSWER_LIMIT_S: Final = 2.0
"""For what no request waits for."""
MOST_CONNECTIONS: Final = 64


class Client(Protocol):
    """What is used of ``Redis`` and ``RedisCluster``."""

    async def execute_command(self, *arguments: Any) -> Any:
        """Send one command."""

    def pipeline(self, transaction: bool = ...) -> Any:
        """Return a collection of commands that are sent at once."""

    def scan_iter(self, match: str, count: int) -> AsyncIterator[bytes]:
        """Return the names of all keys that match, a few at a time."""

    async def aclose(self) -> None:
        """Close the connections."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A client, and those that it asks who its master is."""

    client: Client
    sentinels: tuple[Client, ...] = ()

    async def aclose(self) -> None:
        """Close all of it; raises nothing."""
        for client in (self.client, *self.sentinels):
            with contextlib.suppress(*faults()):
                await client.aclose()


def connect(address: Address, *, answer_limit_s: float = ANSWER_LIMIT_S, most: int = MOST_CONNECTIONS) -> Connection:
    """Return a connection, which connects when it is used first. Its calls are tried once: a cache does not insist.

    To be called in a thread the first time, since it imports.
    """
    import redis.asyncio as redis
    from redis.asyncio.retry import Retry
    from redis.asyncio.sentinel import Sentinel
    from redis.backoff import NoBackoff

    common: dict[str, Any] = {
        **address.options(),
        "socket_timeout": answer_limit_s,
        "socket_connect_timeout": CONNECT_LIMIT_S,
        "retry": Retry(NoBackoff(), 0),
        "max_connections": most,
        "client_name": "paceline",
    }
    if address.kind == "cluster":
        nodes = [redis.cluster.ClusterNode(host, port) for host, port in address.hosts]
        cluster: Client = redis.RedisCluster(startup_nodes=nodes, ssl=address.tls, **common)
        return Connection(cluster)
    common["db"] = address.db
    if address.kind == "sentinel":
        limits = {"socket_timeout": CONNECT_LIMIT_S, "socket_connect_timeout": CONNECT_LIMIT_S}
        tls = {"ssl": True, **_tls_only(common)} if address.tls else {}
        sentinel = Sentinel(  # type: ignore[no-untyped-call]
            list(address.hosts), sentinel_kwargs={**limits, **tls, **address.sentinel_login}
        )
        master: Client = sentinel.master_for(address.service, ssl=address.tls, **common)
        return Connection(master, tuple(sentinel.sentinels))
    if address.kind == "socket":
        common["unix_socket_path"] = address.path
    else:
        (common["host"], common["port"]), common["ssl"] = address.hosts[0], address.tls
    server: Client = redis.Redis(**common)
    return Connection(server)


def faults() -> tuple[type[BaseException], ...]:
    """The exceptions that a client's calls raise when the store fails."""
    import redis.exceptions

    return redis.exceptions.RedisError, OSError, TimeoutError, EOFError


def translate(error: BaseException) -> StoreError:
    """Return what went wrong in one line."""
    said = str(error).strip().rstrip(".") or type(error).__name__
    return StoreError(said.splitlines()[0][:200])


def _tls_only(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name.startswith("ssl_")}
