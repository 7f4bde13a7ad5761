"""Checks of where Paceline is to listen, and who could reach it."""

from __future__ import annotations

import http.client
import socket
import stat
from collections.abc import Iterator

import psutil

from gateway.address import reachable
from gateway.checks.finding import Finding, Level, fix, note, ok, warn
from gateway.exposure import is_loopback, require_safe_binding
from gateway.keys import KeyRing
from gateway.settings import Settings, SettingsError

CONNECT_TIMEOUT_S = 1.0


def check_server(settings: Settings) -> Iterator[Finding]:
    """Look at keys, address and port."""
    yield from check_exposure(settings)
    yield from check_secrets(settings)
    yield from check_port(settings)


def check_exposure(settings: Settings) -> Iterator[Finding]:
    """Can others reach it without a key?"""
    try:
        require_safe_binding(settings)
        KeyRing(settings.auth)
    except SettingsError as error:
        for problem in error.problems:
            yield Finding("keys", Level.FIX, f"{problem.where} {problem.what}", problem.fix)
        return
    if not settings.auth.keys:
        yield ok("keys", "no keys: only programs on this machine can use it")
    elif is_loopback(settings.server.host):
        yield ok("keys", f"{len(settings.auth.keys)} keys")
    else:
        yield note(
            "keys",
            f"{len(settings.auth.keys)} keys; other machines can reach it, unencrypted",
            "Beyond a network that you trust, put a proxy with TLS before it.",
        )


def check_secrets(settings: Settings) -> Iterator[Finding]:
    """Can other users of this machine read an engine's key?"""
    path = settings.path
    if path is None or not any(engine.api_key for engine in settings.engines):
        return
    if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        yield warn(
            "keys", f"{path} holds an engine's key and others can read it", f"`chmod 600 {path}`, or api_key_env."
        )


def check_port(settings: Settings) -> Iterator[Finding]:
    """Is the port free, or taken by a Paceline that runs?"""
    host, port = settings.server.host, settings.server.port
    if port == 0:
        yield ok("port", "a free port will be picked")
        return
    if (taken := _cannot_bind(host, port)) is None:
        yield ok("port", f"{host}:{port} is free")
        return
    if _is_paceline(host, port):
        yield note("port", f"a Paceline runs at {host}:{port} already")
        return
    owner = _owner(port)
    by = f" by {owner}" if owner else ""
    yield fix("port", f"{host}:{port} is taken{by}: {taken}", "Stop it, or set server.port to another.")


def _cannot_bind(host: str, port: int) -> str | None:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        with socket.socket(family, kind) as probe:
            # As the server does: a port in TIME_WAIT is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _is_paceline(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(reachable(host), port, timeout=CONNECT_TIMEOUT_S)
    try:
        connection.request("GET", "/health", headers={"accept": "application/json"})
        answer = connection.getresponse().read(4096)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return b'"status"' in answer and b'"version"' in answer


def _owner(port: int) -> str:
    try:
        listeners = [c.pid for c in psutil.net_connections("tcp") if c.laddr and c.laddr.port == port and c.pid]
        return f"{psutil.Process(listeners[0]).name()} (process {listeners[0]})" if listeners else ""
    except (psutil.Error, OSError):
        return ""
