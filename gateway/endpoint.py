"""The inference routes as plain ASGI: authenticate, admit, read, serve, and turn what went wrong into an answer."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cache.rules import USUAL, Terms, read_terms
from gateway.cached import not_kept, serve_cached
from gateway.client import ClientLeft, ClientWatch, Message, Receive, Scope, Send, TooLarge, read_body, send_body
from gateway.errors import ApiError
from gateway.exchange import Exchange, Wishes
from gateway.incoming import read_request
from gateway.pipeline import serve
from gateway.refusal import stopping
from gateway.requests.outside import BAGGAGE_PREFIX, read_baggage, read_stages
from policies.types import Objective, Operation

if TYPE_CHECKING:
    from gateway.house import House

_TRACE_CONTEXT = (b"tracestate", b"baggage")
_PASSED_ON = (b"traceparent", *_TRACE_CONTEXT)
_STAGE_IN_BAGGAGE = BAGGAGE_PREFIX.encode()
_MAX_ID = 128
_ID_PREFIX = secrets.token_hex(8)
"""One draw a process: asking the system for randomness costs more than routing does."""
_numbers = itertools.count(1)


class InferenceEndpoint:
    """One operation's route. A call is cancelled, down to the engine, when its client leaves."""

    def __init__(self, house: House, operation: Operation) -> None:
        self._house = house
        self._operation = operation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; never raises for what a client or an engine did."""
        headers = dict(scope["headers"])
        request_id = _request_id(headers)
        sent = _SendOnce(send)
        try:
            await self._answer(scope, headers, request_id, receive, sent)
        except ApiError as error:
            await _refuse(sent, request_id, error)
        except ClientLeft:
            pass
        except asyncio.CancelledError:
            if not self._house.stopping or sent.started:
                raise
            await _refuse(sent, request_id, stopping())

    async def _answer(
        self, scope: Scope, headers: Mapping[bytes, bytes], request_id: str, receive: Receive, send: _SendOnce
    ) -> None:
        arrived_at = asyncio.get_running_loop().time()
        try:
            exchange = await self._take_in(scope, headers, request_id, arrived_at, receive, send)
        except ApiError as error:
            self._house.refused(request_id, self._operation, arrived_at, error)
            raise
        await self._serve_until_left(exchange, receive, send)

    async def _take_in(
        self,
        scope: Scope,
        headers: Mapping[bytes, bytes],
        request_id: str,
        arrived_at: float,
        receive: Receive,
        send: _SendOnce,
    ) -> Exchange:
        """Read a request from who may ask. Raises ``ApiError``."""
        house = self._house
        if scope["method"] != "POST":
            raise ApiError(405, f"{scope['path']} takes POST, not {scope['method']}", headers=[(b"allow", b"POST")])
        caller = house.let_in(scope, headers)
        limit = house.settings.server.max_body_bytes
        try:
            data = await read_body(scope, receive, limit)
        except TooLarge:
            raise ApiError(
                413, f"the body is larger than {limit} bytes (server.max_body_bytes)", code="body_too_large"
            ) from None
        read_at, came_at = asyncio.get_running_loop().time(), time.monotonic()
        incoming = read_request(self._operation, data)
        wishes = Wishes(
            caller.name,
            _objective(headers),
            _text(headers, b"x-paceline-deployment"),
            _deadline_s(headers),
            _terms(headers),
            headers.get(b"x-paceline-cache-pace") == b"recorded",
            _outside(headers),
        )
        trace = house.telemetry.begin(request_id, headers)
        names = _PASSED_ON if trace is None else _TRACE_CONTEXT  # a call to an engine has a parent of its own then
        passed_on = tuple((name.decode(), _text(headers, name)) for name in names if name in headers)
        exchange = Exchange(request_id, arrived_at, incoming, wishes, (("x-request-id", request_id), *passed_on))
        exchange.trace = trace
        exchange.read_s, exchange.read_at = read_at - arrived_at, came_at
        house.experiments.assign(exchange, headers)
        checked = exchange.assigned.keeps if exchange.assigned is not None else 0
        send.keep(max(house.telemetry.content_limit, checked))
        return exchange

    async def _serve_until_left(self, exchange: Exchange, receive: Receive, send: _SendOnce) -> None:
        """Serve while watching the client; its leaving cancels everything at once."""
        house = self._house
        task = asyncio.current_task()
        assert task is not None
        watch = ClientWatch(receive, task)
        house.running[task] = exchange
        try:
            caching = house.caching
            ticket = caching.ticket(exchange) if caching is not None else None
            if caching is not None and ticket is not None:
                await serve_cached(exchange, ticket, house, caching, send)
            elif exchange.wishes.terms.only:
                raise not_kept(exchange)
            else:
                async with house.admission.admitted(exchange.wishes.caller, exchange.left_s()) as exchange.waited_s:
                    await serve(exchange, house.fleet, send, house.settings.server.keepalive_s)
        except ApiError as error:
            exchange.error = error
            raise
        except asyncio.CancelledError:
            if not watch.left:
                raise
            task.uncancel()
        finally:
            watch.end()
            house.running.pop(task, None)
            exchange.client_s = send.blocked_s
            exchange.said = bytes(send.kept)
            exchange.ended_at = asyncio.get_running_loop().time()
            exchange.ended = exchange.ended or ("cancelled" if watch.left else "refused")
            house.tell(exchange)


class _SendOnce:
    """An ASGI ``send`` that remembers whether a response has begun, and for how long its client did not read.

    ``kept`` is the beginning of the answer, as much of it as ``keep`` was told.
    """

    __slots__ = ("_clock", "_limit", "_send", "blocked_s", "kept", "started")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._clock = asyncio.get_running_loop().time
        self.started = False
        self.blocked_s = 0.0
        self.kept = bytearray()
        self._limit = 0

    def keep(self, limit: int) -> None:
        """Keep the first ``limit`` bytes of what is sent from now on."""
        self._limit = limit

    async def __call__(self, message: Message) -> None:
        self.started = True
        begun = self._clock()
        await self._send(message)
        self.blocked_s += self._clock() - begun
        if self._limit and len(self.kept) < self._limit:
            self.kept += message.get("body", b"")[: self._limit - len(self.kept)]


async def _refuse(send: Send, request_id: str, error: ApiError) -> None:
    await send_body(send, error.status, [(b"x-request-id", request_id.encode()), *error.headers], error.encode())


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")


def _request_id(headers: Mapping[bytes, bytes]) -> str:
    """The client's ``x-request-id`` where it is a plain token, else a new one."""
    given = _text(headers, b"x-request-id")
    if given and len(given) <= _MAX_ID and given.isascii() and given.isprintable() and " " not in given:
        return given
    return f"{_ID_PREFIX}{next(_numbers):08x}"


def _objective(headers: Mapping[bytes, bytes]) -> Objective | None:
    value = _text(headers, b"x-paceline-objective").strip().lower()
    if not value:
        return None
    try:
        return Objective(value)
    except ValueError:
        raise ApiError(
            400, f"x-paceline-objective is {value!r}; it can be {', '.join(Objective)}", param="x-paceline-objective"
        ) from None


def _deadline_s(headers: Mapping[bytes, bytes]) -> float | None:
    value = _text(headers, b"x-paceline-deadline-ms").strip()
    if not value:
        return None
    if not (value.isascii() and value.isdigit() and 1 <= len(value) <= 9 and int(value)):
        raise ApiError(
            400,
            f"x-paceline-deadline-ms is {value[:40]!r}; it has to be a whole number of milliseconds, such as 2500",
            param="x-paceline-deadline-ms",
        )
    return int(value) / 1000


def _outside(headers: Mapping[bytes, bytes]) -> tuple[tuple[str, float], ...]:
    """The stages before the request that the client names, in its own header before its trace's baggage."""
    stages: tuple[tuple[str, float], ...] = ()
    if b"x-paceline-stage" in headers:
        try:
            stages = read_stages(_text(headers, b"x-paceline-stage"))
        except ValueError as error:
            raise ApiError(400, f"x-paceline-stage {error}", param="x-paceline-stage") from None
    if _STAGE_IN_BAGGAGE in headers.get(b"baggage", b""):
        stages = read_baggage(_text(headers, b"baggage"), stages)
    return stages


def _terms(headers: Mapping[bytes, bytes]) -> Terms:
    """What the client says of the cache: ``x-paceline-cache`` before ``Cache-Control``."""
    if b"x-paceline-cache" not in headers and b"cache-control" not in headers:
        return USUAL
    try:
        return read_terms(_text(headers, b"x-paceline-cache"), _text(headers, b"cache-control"))
    except ValueError as error:
        raise ApiError(400, f"x-paceline-cache: {error}", param="x-paceline-cache") from None
