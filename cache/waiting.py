"""Commands that wait on the server until there is something to say, on connections of their own."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from cache.address import Address
from cache.connection import Connection, connect

LIMIT_S: Final = 4.0
"""What a command may take: longer than it asks the server to wait."""


class Waiting:
    """Connects when it is used first. ``most`` is how many commands wait at once."""

    def __init__(self, address: Address, most: int) -> None:
        self._address = address
        self._most = most
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()

    async def ask(self, *command: Any) -> Any:
        """Send a command and return its result. Raises ``StoreError``."""
        async with self._connecting:
            if self._connection is None:
                self._connection = await asyncio.to_thread(connect, self._address, self._most)
        return await self._connection.ask(*command, limit_s=LIMIT_S)

    async def aclose(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            await self._connection.aclose()
