"""Where an engine listens: a base URL taken apart, and how to connect to it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

_Protocol = TypeVar("_Protocol", bound=asyncio.Protocol)

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origin:
    """Host and port (or the path of a Unix socket), TLS or not, and the path prefix of every request."""

    url: str
    host: str
    port: int
    authority: str
    """What the Host header says."""
    prefix: str
    tls: ssl.SSLContext | None = None
    socket_path: str = ""

    @classmethod
    def parse(cls, base_url: str, verify: bool | str = True) -> Origin:
        """Take ``http[s]://host[:port][/prefix]`` or ``http+unix://%2Fpath%2Fto.sock[/prefix]`` apart.

        ``verify`` is True for the system's certificate authorities, the path of a file or folder of others, or False.
        Raises ValueError, without repeating the URL where it may hold a password.
        """
        parts = urlsplit(base_url)
        if "@" in parts.netloc:
            raise ValueError("a base URL holds no user name and no password: send them as a header")
        if parts.scheme not in ("http", "https", "http+unix") or not parts.netloc:
            raise ValueError(f"not an http(s)://host:port address: {base_url!r}")
        if parts.query or parts.fragment:
            raise ValueError(f"a base URL has no query and no fragment: {base_url!r}")
        prefix = parts.path.rstrip("/")
        if parts.scheme == "http+unix":
            return cls(base_url, "localhost", 0, "localhost", prefix, socket_path=unquote(parts.netloc))
        host, port = parts.hostname, parts.port or _PORTS[parts.scheme]
        if not host:
            raise ValueError(f"no host in {base_url!r}")
        authority = f"[{host}]" if ":" in host else host
        if port != _PORTS[parts.scheme]:
            authority += f":{port}"
        tls = _tls_context(verify) if parts.scheme == "https" else None
        return cls(f"{parts.scheme}://{authority}", host, port, authority, prefix, tls)

    async def connect(self, factory: Callable[[], _Protocol]) -> _Protocol:
        """Open a connection and return its protocol. Raises OSError (TLS failures are among them)."""
        loop = asyncio.get_running_loop()
        if self.socket_path:
            _, protocol = await loop.create_unix_connection(factory, self.socket_path)
        else:
            _, protocol = await loop.create_connection(factory, self.host, self.port, ssl=self.tls)
        return protocol


def _tls_context(verify: bool | str) -> ssl.SSLContext:
    if isinstance(verify, str):
        is_folder = Path(verify).is_dir()
        context = ssl.create_default_context(cafile=None if is_folder else verify, capath=verify if is_folder else None)
    else:
        context = ssl.create_default_context()
        if not verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context
