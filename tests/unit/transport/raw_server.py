"""A server that does what a test's script says, byte for byte, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import quote

Script = Callable[["Peer"], Awaitable[None]]


class Peer:
    """The server's end of one connection."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.reader = reader
        self.writer = writer

    async def request(self) -> tuple[str, dict[str, list[str]], bytes]:
        """The next request: its first line, its headers (lower-case names) and its body."""
        head = await self.head()
        line, *fields = head.decode().removesuffix("\r\n\r\n").split("\r\n")
        headers: dict[str, list[str]] = {}
        for field in fields:
            name, value = field.split(": ", 1)
            headers.setdefault(name.lower(), []).append(value)
        return line, headers, await self.reader.readexactly(int(headers.get("content-length", ["0"])[0]))

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def send(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))
        await self.writer.drain()

    async def answer(self, body: bytes = b"ok", status: str = "200 OK", extra: bytes = b"") -> None:
        """A plain response with a length."""
        await self.send(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n%s\r\n%s" % (status.encode(), len(body), extra, body))

    async def answer_all(self) -> None:
        """Answer each request until the client leaves."""
        while True:
            await self.request()
            await self.answer()

    async def gone(self) -> None:
        """Returns when the client has closed the connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass

    def reset(self) -> None:
        """End the connection with a reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.writer.transport.abort()


class RawServer:
    """Runs ``script`` for each connection. A script that ends closes its connection; one that fails fails the test."""

    def __init__(self, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", path: Path | None = None) -> None:
        self.script: Script = Peer.answer_all
        self.accepted = 0
        self._tls = tls
        self._host = host
        self._path = path
        self._tasks: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> RawServer:
        if self._path:
            self._server = await asyncio.start_unix_server(self._accept, self._path)
            self.url = "http+unix://" + quote(str(self._path), safe="")
        else:
            self._server = await asyncio.start_server(self._accept, self._host, 0, ssl=self._tls)
            self.port: int = self._server.sockets[0].getsockname()[1]
            host = f"[{self._host}]" if ":" in self._host else self._host
            self.url = f"{'https' if self._tls else 'http'}://{host}:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            if not task.done():
                task.cancel()
        outcomes = await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)
        for outcome in outcomes:
            if isinstance(outcome, Exception) and not isinstance(outcome, ConnectionError):
                raise outcome

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._writers.append(writer)
        self._tasks.append(asyncio.create_task(self._run(Peer(self.accepted, reader, writer))))

    async def _run(self, peer: Peer) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):  # the client left while the script read
            await self.script(peer)
        peer.writer.close()
