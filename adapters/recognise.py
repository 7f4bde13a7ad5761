"""What kind of engine answers at an address: told from its answers, never from its port."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from adapters.errors import Broken, EngineError
from adapters.heard import NOT_JSON
from adapters.quirks import OWN, SIGNS, Sign
from adapters.transport import Transport

_BODY_LIMIT: Final = 4 * 1024 * 1024
_DENIED: Final = (401, 403)


class _Card(msgspec.Struct):
    owned_by: str | None = None
    precision: str | None = None


class _Models(msgspec.Struct):
    data: list[_Card] | None


async def kind_at(transport: Transport) -> str:
    """The kind of the engine behind ``transport``: ``openai`` for one that only speaks the protocol.

    Raises ``EngineError``: ``Broken`` for what is no engine, for Paceline itself, and for one that wants a key.
    """
    status, server, body = await _get(transport, "/v1/models")
    models = _decode(body, _Models)
    cards = models.data or () if models is not None else ()
    owners = {card.owned_by for card in cards}
    if OWN in owners:
        if any(card.precision for card in cards):
            return "builtin"
        raise Broken("this is Paceline itself, not an engine")
    candidates = [sign for sign in SIGNS if owners & {*sign.owned_by} or server.startswith(sign.server or ("\0",))]
    for sign in candidates:
        if sign.kind != "mlx" or await _has(transport, sign):
            return sign.kind
    for sign, there in await _side_paths(transport):
        if there:
            return sign.kind
    if models is not None:
        return "openai"
    if status in _DENIED:
        raise Broken("it wants a key: give it 'api_key_env' and 'kind'")
    raise Broken("something answers, but not as an engine does")


async def _side_paths(transport: Transport) -> list[tuple[Sign, bool]]:
    """Ask for all paths at once that only one kind of engine has."""
    signs = [sign for sign in SIGNS if sign.path and sign.kind != "mlx"]
    return list(zip(signs, await asyncio.gather(*(_has(transport, sign) for sign in signs)), strict=True))


async def _has(transport: Transport, sign: Sign) -> bool:
    try:
        status, _, body = await _get(transport, sign.path)
    except EngineError:
        return False
    answer = _decode(body, dict[str, Any]) if status == 200 else None
    return answer is not None and all(mark in answer for mark in sign.marks)


async def _get(transport: Transport, path: str) -> tuple[int, str, bytes]:
    """Status, ``Server`` header in lower case, body."""
    response = await transport.request("GET", path)
    try:
        return response.status, response.headers.get("server", "").lower(), await response.read(_BODY_LIMIT)
    finally:
        response.close()


def _decode(body: bytes, type_: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=type_)
    except NOT_JSON:
        return None
