"""A real HTTP server that plays an engine, fault by fault: for what a real engine does too seldom to be tested.

    with ScriptedEngine(kind="vllm") as engine:
        engine.next(status(503, headers={"retry-after": "2"}), chat(["Hel", "lo"]))   # first request, second request
        engine.always(stall(after=2))                                                # every other one
        …
        received = await engine.received(0)          # the first POST, as soon as it has arrived
        await received.left.wait()                   # until its client has closed the connection

It runs in a thread of its own, with its own event loop, so that a test that blocks does not stop it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from engines import ollama_shapes, shapes
from engines.scripts import Script, chat, text, whole
from engines.signals import LIMIT_S, Signal


@dataclass
class Received:
    """A request that arrived. ``left`` is set when its client closed the connection before the script had ended."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float
    """``time.monotonic()`` when the whole request was there."""
    left: Signal = field(default_factory=lambda: Signal("the client's leaving"))
    answered: Signal = field(default_factory=lambda: Signal("the answer's end"))
    left_at: float | None = None

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Exchange:
    """What a script holds: the request, and the means to answer it piece by piece."""

    def __init__(self, engine: ScriptedEngine, request: Received, writer: asyncio.StreamWriter) -> None:
        self.engine = engine
        self.request = request
        self.keep_alive = not engine.http10
        self._writer = writer
        self._chunked = False

    async def head(
        self, status: int = 200, headers: Mapping[str, str] | None = None, length: int | None = None
    ) -> None:
        """Send status line and headers: with a length, or chunked (until the connection's end in HTTP/1.0)."""
        http10 = self.engine.http10
        lines = [f"HTTP/1.{0 if http10 else 1} {status} {_phrase(status)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if length is not None:
            lines.append(f"content-length: {length}")
        elif not http10:
            lines.append("transfer-encoding: chunked")
            self._chunked = True
        await self.raw("\r\n".join([*lines, "", ""]).encode())

    async def data(self, piece: bytes) -> None:
        """Send a piece of the body at once."""
        await self.raw(b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked else piece)

    async def end(self) -> None:
        """Say that the body is complete."""
        if self._chunked:
            await self.raw(b"0\r\n\r\n")

    async def raw(self, data: bytes) -> None:
        """Write bytes past all framing."""
        self._writer.write(data)
        await self._writer.drain()

    def cut(self) -> None:
        """Drop the connection, as a process does that dies."""
        self.keep_alive = False
        self._writer.transport.abort()

    async def json(self, value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Send one whole JSON answer."""
        body = json.dumps(value).encode()
        await self.head(status, {"content-type": "application/json", **(headers or {})}, len(body))
        await self.data(body)


class ScriptedEngine:
    """Plays an engine of ``kind`` (see ``engines.shapes`` and ``engines.ollama_shapes``).

    GETs (and other side paths) are answered by ``routes``, keys like ``"GET /props"``, which a test may replace, and
    trials of what it can by its ``capabilities``. Another GET is a 404; every other request takes the next script, or
    the standing one.
    """

    def __init__(self, kind: str = "openai", *, model: str = "engine-model", http10: bool | None = None) -> None:
        self.kind = kind
        self.model = model
        self.http10 = (kind == "mlx") if http10 is None else http10
        described = ollama_shapes.describe(model) if kind == "ollama" else shapes.describe(kind, model)
        self.routes: dict[str, Script] = {
            path: text(value) if isinstance(value, bytes) else whole(value) for path, value in described.items()
        }
        self.capabilities = {"tools", "tool_choice"}
        """What ``vllm`` and ``llamacpp`` say when an adapter tries what they can (``vision``, ``embeddings``, too)."""
        self.requests: list[Received] = []
        """The requests that took a script, in order of arrival."""
        self.watched: list[Received] = []
        """The requests that a route answered."""
        self.accepted = 0
        """Connections so far."""
        self._standing: Script = chat(["Hel", "lo", "!"])
        self._queue: deque[Script] = deque()
        self._arrivals: dict[int, Signal] = {}
        self._lock = threading.Lock()
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"scripted {kind}", daemon=True)
        self._started = threading.Event()
        self._stopping: asyncio.Event | None = None
        self.port = 0

    # What a test does with it

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def next(self, *scripts: Script) -> None:
        """Script the next requests, one each."""
        with self._lock:
            self._queue.extend(scripts)

    def always(self, script: Script) -> None:
        """Script all requests that ``next`` says nothing about."""
        self._standing = script

    async def received(self, index: int = 0, limit_s: float = LIMIT_S) -> Received:
        """The ``index``-th scripted request, awaited if it has not arrived yet."""
        await self._arrival(index).wait(limit_s)
        return self.requests[index]

    def received_blocking(self, index: int = 0, limit_s: float = LIMIT_S) -> Received:
        self._arrival(index).wait_blocking(limit_s)
        return self.requests[index]

    def start(self) -> ScriptedEngine:
        self._thread.start()
        assert self._started.wait(LIMIT_S), "the scripted engine did not start"
        return self

    def stop(self) -> None:
        """Close the port and all connections: like a process that was killed. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(lambda: self._stopping and self._stopping.set())
            self._thread.join(LIMIT_S)
            assert not self._thread.is_alive(), "the scripted engine did not stop"

    def __enter__(self) -> ScriptedEngine:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # The server

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stopping.wait()
        # asyncio forgets a connection that it has accepted and not yet handed over when its server closes: nothing more
        # is accepted, then the tasks end, those that hand over among them, then the port closes.
        self._loop.remove_reader(server.sockets[0].fileno())
        for task, writer in self._connections.items():
            # Here, not in the task: one that is cancelled before its first step runs no line of its own.
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)
        server.close()
        await server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._stopping is None or self._stopping.is_set():
            writer.transport.abort()
            return
        self.accepted += 1
        task = asyncio.create_task(self._converse(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(self._connections.pop)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            early: bytes | None = b""
            while early is not None:
                early = await self._exchange(reader, writer, early)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, early: bytes) -> bytes | None:
        """Answer one request, which begins with ``early``. Returns what came of the next one; ``None`` at the end."""
        request = await _read_request(reader, early)
        if request is None:
            return None
        script = self._script_for(request)
        exchange = Exchange(self, request, writer)
        answer = asyncio.ensure_future(script(exchange))
        watch = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({answer, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                request.left_at = time.monotonic()
                request.left.set()
                return None
            if isinstance(error := answer.exception(), ConnectionError):
                request.left_at = time.monotonic()
                request.left.set()
                return None
            if error is not None:
                raise error
            request.answered.set()
        finally:
            for task in (answer, watch):
                if not task.done():
                    task.cancel()
            await asyncio.gather(answer, watch, return_exceptions=True)
        if not exchange.keep_alive or request.headers.get("connection", "").lower() == "close":
            return None
        return b"" if watch.cancelled() else watch.result()

    def _script_for(self, request: Received) -> Script:
        route = self.routes.get(f"{request.method} {request.path.partition('?')[0]}")
        if route is None and (refusal := shapes.refuse_trial(self.kind, request, self.capabilities)):
            route = whole(refusal[1], refusal[0])
        if route is None and request.method == "GET":
            route = whole({"detail": "Not Found"}, 404)
        if route is not None:
            self.watched.append(request)
            return route
        with self._lock:
            script = self._queue.popleft() if self._queue else self._standing
            self.requests.append(request)
            index = len(self.requests) - 1
        self._arrival(index).set()
        return script

    def _arrival(self, index: int) -> Signal:
        with self._lock:
            return self._arrivals.setdefault(index, Signal(f"request {index}"))


async def _read_request(reader: asyncio.StreamReader, early: bytes) -> Received | None:
    try:
        head = early + await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, path, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(method, path, headers, body, time.monotonic())


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Whatever"
