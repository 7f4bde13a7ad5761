"""Who can reach Paceline: nobody beyond this machine without a key, and no web page by way of a browser here."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping

from gateway.errors import ApiError
from gateway.settings import ServerSettings, Settings
from gateway.settings_errors import Problem, SettingsError

_LOCAL_NAMES = frozenset({b"localhost", b"127.0.0.1", b"[::1]", b"host.docker.internal"})


def require_safe_binding(settings: Settings) -> None:
    """Raise ``SettingsError``, with the two ways out, when others could reach a Paceline that asks for no key.

    A host name is resolved; it is safe only when each of its addresses is this machine's own.
    """
    host = settings.server.host
    if settings.auth.keys or is_loopback(host):
        return
    raise SettingsError(
        [
            Problem(
                "server.host",
                f"is {host!r}, so that other machines could use it without a key",
                "Either add a key: `paceline key --name NAME` prints the lines for auth.keys. "
                "Or stay on this machine: `host: 127.0.0.1`.",
            )
        ]
    )


def is_loopback(host: str) -> bool:
    """Whether an address or name is reachable from this machine only. Raises ``SettingsError`` for an unknown name."""
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        problem = Problem("server.host", f"is {host!r}, which is no address or name of this machine", "Use 127.0.0.1.")
        raise SettingsError([problem]) from None
    return all(_is_loopback_address(str(address[0])) for *_, address in found)


def _is_loopback_address(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


class LocalGuard:
    """For a Paceline without keys: keeps out web pages, which reach this machine through the user's own browser.

    The `Host` header has to be one of this machine's names (a page that has its own name resolve to 127.0.0.1 sends
    its own), and an `Origin` has to be this server or one of `server.cors_origins`.
    """

    def __init__(self, server: ServerSettings) -> None:
        own = f"[{server.host}]" if ":" in server.host else server.host
        self._hosts = _LOCAL_NAMES | {host.lower().encode() for host in (own, *server.allowed_hosts)}
        self._origins = frozenset(origin.lower().encode() for origin in server.cors_origins)

    def check(self, scheme: str, headers: Mapping[bytes, bytes]) -> None:
        """Raise ``ApiError`` (403), saying what to configure, for a request that a foreign page may have caused."""
        authority = headers.get(b"host", b"localhost").lower()
        if _without_port(authority) not in self._hosts:
            raise ApiError(
                403,
                f"Host {_shown(authority)} is not a name of this machine. If it is: add it to server.allowed_hosts; "
                "or use keys (auth.keys), with which any name will do.",
                code="host_not_allowed",
            )
        origin = headers.get(b"origin")
        if origin is not None and not self._is_allowed(origin.lower(), scheme, authority):
            raise ApiError(
                403,
                f"Requests from the web page {_shown(origin)} are not allowed. To allow them: add it to "
                "server.cors_origins.",
                code="origin_not_allowed",
            )

    def _is_allowed(self, origin: bytes, scheme: str, authority: bytes) -> bool:
        return origin in self._origins or origin == scheme.encode() + b"://" + authority


def _without_port(authority: bytes) -> bytes:
    host, colon, port = authority.rpartition(b":")
    return host if colon and port.isdigit() else authority


def _shown(value: bytes) -> str:
    return repr(value[:200].decode("latin-1"))
