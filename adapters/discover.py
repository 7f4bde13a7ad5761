"""Finds the engines on this machine, and says what kind of engine an address has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from adapters.errors import EngineError, TimedOut
from adapters.quirks import FLAVOURS
from adapters.recognise import kind_at
from adapters.registry import USUAL_PORTS
from adapters.transport import Transport, TransportLimits

OWN_PORT: Final = 7223
RECOGNISE_LIMIT_S: Final = 5.0

_LABELS: Final = {
    "builtin": "built-in engine",
    "llamacpp": "llama.cpp",
    "vllm": "vLLM",
    "ollama": "Ollama",
    "lmstudio": "LM Studio",
}


@dataclass(frozen=True, slots=True)
class Found:
    """An engine that answers: its kind, the kind's name for people, its address."""

    kind: str
    label: str
    url: str


async def discover(ports: Sequence[int] = USUAL_PORTS, host: str = "127.0.0.1", limit_s: float = 0.7) -> list[Found]:
    """Ask all ports at once and return the engines in the order of ``ports``, after ``limit_s`` at most.

    What is silent, refuses, is no engine, or is Paceline itself is left out.
    """
    probes = (_probe(f"http://{host}:{port}", limit_s) for port in ports if port != OWN_PORT)
    return [found for found in await asyncio.gather(*probes) if found is not None]


async def recognise(url: str, *, api_key: str = "", verify: bool = True, limit_s: float = RECOGNISE_LIMIT_S) -> str:
    """The kind of the engine at ``url``. Raises ``EngineError`` when there is none, or when it cannot be told."""
    limits = TransportLimits(connect_timeout_s=limit_s, header_timeout_s=limit_s, read_timeout_s=limit_s)
    headers = {"authorization": f"Bearer {api_key}"} if api_key else None
    transport = Transport(url.rstrip("/").removesuffix("/v1"), limits=limits, headers=headers, verify=verify)
    try:
        async with asyncio.timeout(limit_s):
            return await kind_at(transport)
    except TimeoutError:
        raise TimedOut(f"{url} did not say within {limit_s:g} s what it is") from None
    finally:
        await transport.aclose()


async def _probe(url: str, limit_s: float) -> Found | None:
    try:
        kind = await recognise(url, limit_s=limit_s)
    except EngineError:
        return None
    return Found(kind, _LABELS.get(kind) or FLAVOURS[kind].label, url)
