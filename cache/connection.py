"""redis-py's clients for an address. Its package is imported when one is made: that takes a good part of a second."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

from cache.address import Address
from cache.breaker import StoreError

CONNECT_LIMIT_S: Final = 1.0
ANSWER_LIMIT_S: Final = 2.0
"""For what no request waits for."""
MOST_CONNECTIONS: Final = 64


class UnknownScript(StoreError):
    """The server has not seen this script, or has forgotten it."""


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
    """A client, and those that it asks who its master is. What goes wrong is a ``StoreError``."""

    client: Client
    sentinels: tuple[Client, ...] = ()

    async def ask(self, *command: Any, limit_s: float = ANSWER_LIMIT_S) -> Any:
        """Send a command and return its result."""
        with told(limit_s):
            async with asyncio.timeout(limit_s):
                return await self.client.execute_command(*command)

    async def ask_all(self, commands: Iterable[tuple[Any, ...]], *, limit_s: float = ANSWER_LIMIT_S) -> list[Any]:
        """Send many at once and return their results, exceptions among them."""
        with told(limit_s):
            pipeline = self.client.pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            async with asyncio.timeout(limit_s):
                results: list[Any] = await pipeline.execute(raise_on_error=False)
                return results

    async def aclose(self) -> None:
        """Close all of it; raises nothing."""
        for client in (self.client, *self.sentinels):
            with contextlib.suppress(*faults()):
                await client.aclose()


@contextlib.contextmanager
def told(limit_s: float) -> Iterator[None]:
    """Turn what redis-py raises into ``StoreError``."""
    try:
        yield
    except faults() as error:
        late = isinstance(error, TimeoutError) and not str(error)
        raise StoreError(f"no answer within {limit_s * 1000:.0f} ms") if late else translate(error) from None


def connect(address: Address, most: int = MOST_CONNECTIONS) -> Connection:
    """Return a connection, which connects when it is used first. Its calls are tried once: a cache does not insist.

    To be called in a thread the first time, since it imports.
    """
    import redis.asyncio as redis
    from redis.asyncio.retry import Retry
    from redis.asyncio.sentinel import Sentinel
    from redis.backoff import NoBackoff

    common: dict[str, Any] = {
        **address.options(),
        # Its own limit starts a task for each write, and can swallow a cancellation; ours are around each call.
        "socket_timeout": None,
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
    if type(error).__name__ == "NoScriptError":
        return UnknownScript(str(error))
    said = str(error).strip().rstrip(".") or type(error).__name__
    return StoreError(said.splitlines()[0][:200])


def _tls_only(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name.startswith("ssl_")}
