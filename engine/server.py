"""The engine over HTTP, in OpenAI's forms. It listens from the first moment, and says how far the model has come."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import threading
from collections.abc import Callable
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any, Generic, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from engine import answers, protocol
from engine.courier import Courier
from engine.engine import Engine
from engine.errors import EngineError, EngineStopped, InvalidRequest, Loading, UnknownModel
from engine.events import Done, Event, Failed
from engine.fields import Fields
from engine.metrics import Metrics
from engine.protocol import Embedding, Generation, Language
from engine.request import Sequence

_Kind = TypeVar("_Kind", Generation, Embedding)

MOST_BODY_BYTES = 64 * 1024 * 1024
GRACE_S = 7.0
"""How long answers under way may take once the engine is told to end; a supervisor waits a little longer."""
AFTER_GRACE_S = 2
logger = logging.getLogger("paceline.engine")
SSE = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
PLAIN_JSON = [(b"content-type", b"application/json")]


@dataclass(frozen=True, slots=True)
class Served:
    """A model that is loaded: ``card`` is what /v1/models tells of it, ``says`` the same in words."""

    name: str
    card: dict[str, Any]
    says: str
    language: Language
    engine: Engine


@dataclass(slots=True)
class Service:
    """What the paths share. ``open`` loads the model: it gets a function that it tells the share done."""

    open: Callable[[Callable[[float], None]], Served]
    progress: float = 0.0
    served: Served | None = None
    failure: EngineError | None = None
    metrics: Metrics = field(default_factory=Metrics)
    courier: Courier = field(default_factory=Courier)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def ready(self) -> Served:
        """What is served. Raises ``Loading`` while it is not there, ``EngineStopped`` once the engine is broken."""
        if self.served is None:
            raise Loading(f"the model is loading: {self.progress:.0%} of its weights are read")
        if not self.served.engine.healthy:
            raise EngineStopped("the engine is broken, and ends")
        return self.served

    def load(self) -> None:
        """Load the model, in the caller's thread; a failure is kept in ``failure``."""
        try:
            served = self.open(self._note)
            served.engine.start()
            self.served = served
        except EngineError as error:
            self.failure = error
        except Exception as error:  # the thread's edge: whoever waits for the model has to hear of it
            logger.exception("loading the model failed")
            self.failure = EngineError(f"{type(error).__name__}: {error}")

    def fail(self, why: str) -> None:
        """Serve no more; may be called from any thread."""
        if self.served is None:
            self.failure = self.failure or EngineStopped(why)
        else:
            self.served.engine.fail()

    def _note(self, share: float) -> None:
        self.progress = share


class Server(uvicorn.Server):
    """uvicorn that loads the model while it listens already, and ends once the model or the engine has failed."""

    def __init__(self, service: Service, host: str, port: int) -> None:
        self.service = service
        super().__init__(
            uvicorn.Config(
                application(service),
                host=host,
                port=port,
                lifespan="on",
                ws="none",
                access_log=False,
                log_config=None,
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=int(GRACE_S) + AFTER_GRACE_S,
                timeout_keep_alive=75,
            )
        )
        self.loading = threading.Thread(target=self._load, name="loading", daemon=True)

    def end(self) -> None:
        """End soon; may be called from any thread."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and only then begin to load."""
        await super().startup(sockets)
        if self.started:
            self.loading.start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End gracefully. The signal is not raised again: such an end is a success."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more requests, and give those under way some time."""
        if self.service.served is not None:
            threading.Thread(target=self.service.served.engine.stop, args=(GRACE_S,), daemon=True).start()
        await super().shutdown(sockets)

    def _load(self) -> None:
        self.service.load()
        if self.service.served is None:
            self.should_exit = True
            return
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        logger.info("%s; it listens on http://%s:%s", self.service.served.says, host, port)


def application(service: Service) -> Starlette:
    """All paths."""
    return Starlette(
        routes=[
            Route("/v1/chat/completions", _Generate(service, protocol.read_chat), methods=["POST"]),
            Route("/v1/completions", _Generate(service, protocol.read_completion), methods=["POST"]),
            Route("/v1/embeddings", _Embed(service, protocol.read_embedding), methods=["POST"]),
            Route("/v1/models", partial(_models, service)),
            Route("/tokenize", partial(_tokenize, service), methods=["POST"]),
            Route("/detokenize", partial(_detokenize, service), methods=["POST"]),
            Route("/health", partial(_health, service)),
            Route("/ready", partial(_ready, service)),
            Route("/metrics", partial(_metrics, service)),
        ],
        exception_handlers={EngineError: _refuse, HTTPException: _no_such_path, Exception: _broke},
    )


async def _models(service: Service, request: Request) -> Response:
    return _json({"object": "list", "data": [service.ready().card]})


async def _health(service: Service, request: Request) -> Response:
    if service.served is None:
        return _json({"status": "loading"})
    return _json({"status": "ok", "model": service.ready().name})


async def _ready(service: Service, request: Request) -> Response:
    try:
        return _json({"status": "ready", "model": service.ready().name, "progress": 1.0})
    except EngineError as error:
        state = {"status": error.code or "broken", "progress": round(service.progress, 4)}
        return _json({**answers.error_body(error), **state}, error.status)


async def _metrics(service: Service, request: Request) -> Response:
    load = service.served.engine.load() if service.served else None
    return Response(service.metrics.text(load), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _tokenize(service: Service, request: Request) -> Response:
    served, fields = await _asked(service, request.receive)
    tokens = await asyncio.to_thread(protocol.read_text, fields, served.language)
    return _json({"count": len(tokens), "max_model_len": served.language.context, "tokens": tokens})


async def _detokenize(service: Service, request: Request) -> Response:
    served, fields = await _asked(service, request.receive)
    tokens = await asyncio.to_thread(protocol.read_tokens, fields, served.language)
    return _json({"prompt": served.language.tokenizer.decode(tokens, hide_special=False)})


async def _asked(service: Service, receive: Receive) -> tuple[Served, Fields]:
    """What is served, and the body's fields. Raises ``EngineError``, ``UnknownModel`` among them."""
    served = service.ready()
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise InvalidRequest("the client left before its request was whole")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MOST_BODY_BYTES:
            raise InvalidRequest(f"the body has more than {MOST_BODY_BYTES} bytes")
        more = message.get("more_body", False)
    fields = Fields.decode(b"".join(parts))
    name = fields.text("model", served.name)
    if name != served.name:
        raise UnknownModel(f"the model {name!r} does not exist; {served.name!r} is served", "model")
    return served, fields


class _Work:
    """The sequences of one request, and what the engine tells of them. Ends them when its client leaves."""

    def __init__(self, service: Service, served: Served, sequences: Listed[Sequence], receive: Receive) -> None:
        self._service = service
        self._engine = served.engine
        self._sequences = sequences
        self._told: asyncio.Queue[tuple[int, Event] | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._leaving = asyncio.ensure_future(_left(receive))
        self._leaving.add_done_callback(lambda _: self._told.put_nowait(None))
        self._open = set(range(len(sequences)))
        self._error: EngineError | None = None

    async def __aenter__(self) -> _Work:
        try:
            for index, sequence in enumerate(self._sequences):
                self._engine.submit(sequence, partial(self._listen, index))
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        self._end()

    async def next(self) -> list[tuple[int, Event]]:
        """What has been told meanwhile: nothing once the client has left.

        Raises ``EngineError`` when one failed, after what was told before.
        """
        if self._error is not None:
            raise self._error
        first = await self._told.get()
        batch = [] if first is None else [first]
        while batch and not self._told.empty():
            if (more := self._told.get_nowait()) is None:
                return []
            batch.append(more)
        for place, (index, event) in enumerate(batch):
            if isinstance(event, Failed):
                if place == 0:
                    raise event.error
                self._error = event.error
                return batch[:place]
            if isinstance(event, Done):
                self._open.discard(index)
                self._service.metrics.ended(event)
        return batch

    def cancel(self, index: int) -> None:
        """End one of the sequences, with an event that says so."""
        self._engine.cancel(self._sequences[index].id)

    def _listen(self, index: int, event: Event) -> None:
        self._service.courier.carry(self._loop, self._told, (index, event))

    def _end(self) -> None:
        self._leaving.cancel()
        for index in self._open:
            self.cancel(index)
            self._service.metrics.unfinished()


class _Path(Generic[_Kind]):
    """A path that has the engine work on what its body asks for."""

    def __init__(self, service: Service, read: Callable[[Fields, Language], _Kind]) -> None:
        self._service = service
        self._read: Callable[[Fields, Language], _Kind] = read

    async def _asked(self, receive: Receive) -> tuple[Served, _Kind]:
        """What is served, and what is asked of it. Raises ``EngineError``."""
        served, fields = await _asked(self._service, receive)
        return served, await asyncio.to_thread(self._read, fields, served.language)

    def _work(self, served: Served, asked: _Kind, receive: Receive) -> _Work:
        return _Work(self._service, served, asked.sequences(self._service.numbers.__next__), receive)


class _Generate(_Path[Generation]):
    """A path whose answers are generated."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        served, asked = await self._asked(receive)
        answer = answers.Answer(asked, served.name, served.language.tokenizer)
        begun = False
        async with self._work(served, asked, receive) as work:
            try:
                while not answer.whole and (batch := await work.next()):
                    out = b"" if begun else answer.begin()
                    for index, event in batch:
                        assert not isinstance(event, Failed)
                        out += answer.take(index, event)
                        if answer.closed(index):
                            work.cancel(index)
                    if asked.stream and out:
                        if not begun:
                            await send(_head(200, SSE))
                        begun = True
                        await send(_part(out, more=not answer.whole))
            except EngineError as error:
                if not begun:
                    raise
                await send(_part(answers.event(answers.error_body(error)), more=False))
            if answer.whole and not asked.stream:
                await send(_head(200, PLAIN_JSON))
                await send(_part(answer.body(), more=False))


class _Embed(_Path[Embedding]):
    """The path whose answers are embeddings."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        served, asked = await self._asked(receive)
        done: dict[int, Done] = {}
        async with self._work(served, asked, receive) as work:
            while len(done) < len(asked.inputs):
                batch = await work.next()
                if not batch:
                    return
                done |= {index: event for index, event in batch if isinstance(event, Done)}
            body = answers.embeddings(asked, served.name, [done[index] for index in range(len(done))])
            await send(_head(200, PLAIN_JSON))
            await send(_part(body, more=False))


async def _left(receive: Receive) -> None:
    """Returns when the client has."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _head(status: int, headers: list[tuple[bytes, bytes]]) -> Message:
    return {"type": "http.response.start", "status": status, "headers": headers}


def _part(body: bytes, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


def _json(value: Any, status: int = 200) -> Response:
    return Response(answers.encode(value), status, media_type="application/json")


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, EngineError)
    return _json(answers.error_body(error), error.status)


async def _no_such_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = InvalidRequest(f"{request.method} {request.url.path}: {error.detail}")
    return _json(answers.error_body(said), error.status_code)


async def _broke(request: Request, error: Exception) -> Response:
    return _json(answers.error_body(EngineError("the engine's server failed; its log says where")), 500)
