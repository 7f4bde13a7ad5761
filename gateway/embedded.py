"""The embedded Valkey as a process: started, watched, started again when it dies, and ended with Paceline.

Gateways on the same data folder share one: the first runs it, the others use it, and one of them runs it when the first
has gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
from collections.abc import Callable
from typing import Final

from adapters.guarded import GuardedProcess
from adapters.launch import Command, LaunchError, LaunchSpec
from cache.embedded import EmbeddedServer
from cache.tasks import end

logger = logging.getLogger("paceline.cache")

STOP_LIMIT_S: Final = 5.0
READY_LIMIT_S: Final = 10.0
_LOOK_EVERY_S: Final = 0.05
_OTHERS_EVERY_S: Final = 1.0
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 10.0


class EmbeddedValkey:
    """Looks after one server. ``on_ready`` is called once, when it can be connected to for the first time."""

    def __init__(self, server: EmbeddedServer, on_ready: Callable[[], None]) -> None:
        self._server = server
        self._on_ready = on_ready
        self._is_ready = False
        self._task: asyncio.Task[None] | None = None
        self.pid: int | None = None
        """Of the server, while it is ours."""

    def start(self) -> None:
        """Begin; returns at once."""
        self._task = asyncio.get_running_loop().create_task(self._look_after(), name="embedded valkey")

    async def aclose(self) -> None:
        """End the server, if it is ours: it writes what it holds first."""
        await end(self._task)
        self._task = None

    async def _look_after(self) -> None:
        clock = asyncio.get_running_loop().time
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                self._server.prepare()
                with _Lock(self._server) as lock:
                    if lock.is_held and not await self._answers():
                        started = clock()
                        await self._run()
                        if clock() - started > _LONGEST_PAUSE_S:
                            pause_s = _FIRST_PAUSE_S
                        logger.warning("cache: the embedded Valkey has ended, and is started again")
                    else:
                        await self._wait_for_another()
                        pause_s = _FIRST_PAUSE_S
                        continue
            except (OSError, LaunchError) as error:
                logger.warning("cache: the embedded Valkey cannot run: %s", error)
            await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    async def _run(self) -> None:
        """Run it to its end. Raises LaunchError when it does not come up."""
        folder = self._server.folder
        spec = LaunchSpec("valkey", "valkey", stop_timeout_s=STOP_LIMIT_S, log_file=folder / "valkey.log")
        process = await GuardedProcess.start(Command(self._server.command(), {}, "", ""), spec)
        self.pid = process.pid
        try:
            await self._until_it_answers(process)
            await process.ended.wait()
        finally:
            self.pid = None
            await process.end()

    async def _until_it_answers(self, process: GuardedProcess) -> None:
        try:
            async with asyncio.timeout(READY_LIMIT_S):
                while not await self._answers():
                    if process.ended.is_set():
                        raise process.epitaph()
                    await asyncio.sleep(_LOOK_EVERY_S)
        except TimeoutError:
            raise LaunchError(f"does not answer within {READY_LIMIT_S:g} s", log=process.log) from None
        self._ready()

    async def _wait_for_another(self) -> None:
        """Use the one that another gateway runs, or that is still ending."""
        if await self._answers():
            self._ready()
        await asyncio.sleep(_OTHERS_EVERY_S)

    def _ready(self) -> None:
        if not self._is_ready:
            self._is_ready = True
            self._on_ready()

    async def _answers(self) -> bool:
        try:
            async with asyncio.timeout(1.0):
                reader, writer = await asyncio.open_unix_connection(self._server.socket)
                try:
                    writer.write(b"PING\r\n")
                    return (await reader.readline()).startswith(b"+PONG")
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return False


class _Lock:
    """Whose turn it is to run the server of a folder; the system gives it back when a process dies."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._path = server.folder / "lock"
        self._fd = -1
        self.is_held = False

    def __enter__(self) -> _Lock:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.is_held = True
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
