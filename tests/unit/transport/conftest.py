"""Fixtures for the HTTP client's tests: both event loops, a raw server, and no connection left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop
from raw_server import RawServer

from adapters.transport import Transport, TransportLimits


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], object]]:
    """Paceline runs on uvloop where there is one; the client must not depend on it."""
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def server() -> AsyncIterator[RawServer]:
    async with RawServer() as server:
        yield server


@pytest.fixture
async def transport(server: RawServer) -> AsyncIterator[Transport]:
    """A client of ``server`` with ordinary limits."""
    transport = Transport(server.url)
    yield transport
    await transport.aclose()


@pytest.fixture
async def connect(server: RawServer) -> AsyncIterator[Callable[..., Transport]]:
    """Makes clients of ``server`` with the given limits."""
    transports: list[Transport] = []

    def make(**limits: float) -> Transport:
        transports.append(Transport(server.url, limits=TransportLimits(**limits)))
        return transports[-1]

    yield make
    for transport in transports:
        await transport.aclose()
