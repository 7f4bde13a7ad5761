"""Where an engine's adapter comes from: an address of a known kind, one to recognise, or a process of our own."""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from dataclasses import replace
from urllib.parse import urlsplit

from adapters.base import Adapter, Endpoint, EngineDescription
from adapters.discover import recognise
from adapters.errors import Loading, Unreachable
from adapters.hardware import hardware_of, is_local
from adapters.managed import ManagedEngine
from adapters.process import find_listener, memory_use, model_path
from adapters.registry import create
from policies.types import Hardware


class Source(ABC):
    """Makes the adapter when the engine can be talked to, and owns it. ``hardware`` is the operator's word, if any."""

    def __init__(self, endpoint: Endpoint, hardware: Hardware | None) -> None:
        self.name = endpoint.name
        self.adapter: Adapter | None = None
        self.pid: int | None = None
        """The engine's process, where it is on this machine and may be seen."""
        self._endpoint = endpoint
        self._hardware_given = hardware
        self._hardware: Hardware | None = None

    @property
    def url(self) -> str:
        """The engine's address; "" as long as it has none."""
        return "" if self.adapter is None else self.adapter.endpoint.url

    @property
    def host(self) -> str:
        """The machine that it runs on, as ``Hardware.host`` will name it; known before it has answered."""
        if self._hardware_given is not None:
            return self._hardware_given.host
        url = self._endpoint.url
        return socket.gethostname() if not url or is_local(url) else urlsplit(url).hostname or url

    @abstractmethod
    async def connect(self) -> Adapter:
        """Return the adapter, made at the first need. Raises ``EngineError`` while there is nothing to talk to."""

    def complete(self, description: EngineDescription) -> EngineDescription:
        """Add what is known of the engine beside its own word."""
        return description

    async def reconnect(self) -> None:
        """The engine has failed: begin anew with it, since what answers next may be another one. Ends its calls."""
        await self._drop_adapter()

    async def hardware(self) -> Hardware:
        """Return what the engine runs on; looked up once for each connection, off the event loop."""
        if self._hardware_given is not None:
            return self._hardware_given
        if self._hardware is None:
            assert self.adapter is not None
            url, kind = self.adapter.endpoint.url, self.adapter.kind
            self._hardware = await asyncio.to_thread(hardware_of, url, self.pid, kind=kind)
        return self._hardware

    def peak_memory(self) -> int | None:
        """Return the bytes that the engine's process took at most, where it can be seen. Takes some milliseconds."""
        use = None if self.pid is None else memory_use(self.pid)
        return None if use is None else use.host_bytes + (use.gpu_bytes or 0)

    async def aclose(self) -> None:
        """Close the adapter, and stop the process where it is ours."""
        await self._drop_adapter()

    async def _drop_adapter(self) -> None:
        if self.adapter is not None:
            adapter, self.adapter = self.adapter, None
            await adapter.aclose()
        self._hardware = None
        self.pid = None


class AddressSource(Source):
    """An engine that runs already; ``kind`` is recognised by what it answers unless given."""

    def __init__(self, endpoint: Endpoint, kind: str | None, hardware: Hardware | None = None) -> None:
        super().__init__(endpoint, hardware)
        self._kind = kind

    async def connect(self) -> Adapter:
        if self.adapter is None:
            endpoint = self._endpoint
            kind = self._kind
            if kind is None:
                kind = await recognise(endpoint.url, api_key=endpoint.api_key, verify=endpoint.verify_tls)
            if kind != "hosted" and is_local(endpoint.url):
                self.pid = await asyncio.to_thread(_process_behind, endpoint.url)
                if self.pid is not None and not endpoint.model_dir:
                    path = await asyncio.to_thread(model_path, self.pid)
                    if path is not None and path.is_dir():
                        endpoint = replace(endpoint, model_dir=str(path))
            self.adapter = create(kind, endpoint)
        return self.adapter


class ManagedSource(Source):
    """An engine that Paceline starts. After a restart it gets a new adapter, since its address may be another."""

    def __init__(self, endpoint: Endpoint, managed: ManagedEngine, hardware: Hardware | None = None) -> None:
        super().__init__(endpoint, hardware)
        self._managed = managed

    def complete(self, description: EngineDescription) -> EngineDescription:
        return self._managed.complete(description)

    async def connect(self) -> Adapter:
        managed = self._managed
        managed.start()
        if not managed.up:
            raise (Unreachable if managed.failed else Loading)(managed.note, engine=self.name)
        if self.adapter is None or self.adapter.endpoint.url != managed.url or self.pid != managed.pid:
            await self._drop_adapter()
            self.pid = managed.pid
            self.adapter = create(managed.spec.engine, replace(self._endpoint, url=managed.url))
        return self.adapter

    async def aclose(self) -> None:
        await super().aclose()
        await self._managed.stop()


def _process_behind(url: str) -> int | None:
    parts = urlsplit(url)
    return find_listener(parts.port or (443 if parts.scheme == "https" else 80))
