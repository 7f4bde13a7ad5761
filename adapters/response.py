"""An engine's response: its head, and its body as it arrives."""

from __future__ import annotations

from adapters.connection import Connection
from adapters.errors import Broken, Interrupted
from adapters.pool import Pool


class Response:
    """Read by one task at a time. Close it whatever happens: a response left open keeps its connection."""

    __slots__ = ("_connection", "_pool", "_whole", "connected_at", "headers", "read_timeout_s", "status")

    status: int
    headers: dict[str, str]
    """Names in lower case; values of a repeated name joined with a comma."""

    def __init__(self, pool: Pool, connection: Connection, read_timeout_s: float, connected_at: float) -> None:
        self.status = connection.status
        self.headers = connection.headers
        self._pool = pool
        self._connection: Connection | None = connection
        self.read_timeout_s = read_timeout_s
        """Of each read; may be changed between two."""
        self._whole = False
        self.connected_at = connected_at
        """When the request could be sent, on the loop's clock."""

    async def read_some(self) -> bytes:
        """The next bytes of the body, all that have arrived; ``b""`` at its complete end.

        Raises TimedOut (no byte of the body within the limit), Interrupted (silent too long or cut after that, or read
        after ``close``) and Broken (not HTTP). A cancelled read closes the connection at once.
        """
        connection = self._connection
        if connection is None:
            if self._whole:
                return b""
            raise Interrupted("the response was closed before its end")
        try:
            while True:
                if connection.has_body:
                    return connection.take()
                if connection.complete:
                    self.close()
                    return b""
                if connection.error is not None:
                    raise connection.error
                await connection.wait(self.read_timeout_s)
        except BaseException:
            self.close()
            raise

    async def read(self, limit: int = 64 * 1024 * 1024) -> bytes:
        """The rest of the body. Raises what ``read_some`` raises, and Broken above ``limit`` bytes."""
        parts: list[bytes] = []
        size = 0
        while data := await self.read_some():
            size += len(data)
            if size > limit:
                peer = self._connection.peer if self._connection is not None else "the engine"
                self.close()
                raise Broken(f"{peer} answered with more than {limit} bytes")
            parts.append(data)
        return b"".join(parts)

    def close(self) -> None:
        """Give the connection back when the body is complete, else close it at once. May be called again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._whole = connection.complete and not connection.has_body
            self._pool.release(connection)

    def finish(self) -> None:
        """Want no more of a body that has said all but its end. The connection is given back once that has come."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._whole = True
            self._pool.finish(connection)

    def __del__(self) -> None:
        # The last resort for a response that its reader never saw, such as one lost to a time limit around request().
        if self._connection is not None:
            self.close()
