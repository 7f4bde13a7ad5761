"""Real Valkeys for tests: started on a socket or a free port, frozen, killed and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from adapters.ports import free_port
from cache.embedded import NoServer, find_server

LIMIT_S = 20.0


class Valkey:
    """One server. It keeps nothing on disk unless ``persistent``; ``options`` are its own."""

    def __init__(self, *, tcp: bool = False, persistent: bool = False, **options: str | tuple[str, ...]) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="valkey-")
        self.folder = Path(self._temporary.name)
        self.port = free_port() if tcp else 0
        self.url = f"redis://127.0.0.1:{self.port}" if tcp else f"unix://{self.folder}/s"
        kept = {"appendonly": "yes", "appendfsync": "always"} if persistent else {}
        self._options: dict[str, str | tuple[str, ...]] = {
            "save": "",
            "dir": str(self.folder),
            "port": str(self.port),
            **kept,
        }
        if not tcp:
            self._options["unixsocket"] = f"{self.folder}/s"
        self._options |= {name.replace("_", "-"): value for name, value in options.items()}
        self._mode: tuple[str, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *mode: str) -> Valkey:
        """Start it and return once it answers (``--sentinel FILE`` is a mode)."""
        self._mode = mode or self._mode
        options = [] if self._mode else self._words()
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen([find_server(), *self._mode, *options], stdout=log, stderr=log)
        end = time.monotonic() + LIMIT_S
        while True:
            try:
                with self.client() as client:
                    client.execute_command("PING")
                return self
            except redis.exceptions.AuthenticationError:
                return self
            except redis.exceptions.RedisError:
                assert self._process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < end, "it does not answer"
                time.sleep(0.01)

    def option(self, name: str) -> str | tuple[str, ...]:
        """Return what it was started with."""
        return self._options[name]

    def _words(self) -> list[str]:
        words = []
        for name, value in self._options.items():
            words += [f"--{name}", *((value,) if isinstance(value, str) else value)]
        return words

    def client(self, **options: Any) -> redis.Redis:
        """Return a plain client."""
        return redis.Redis.from_url(self.url, socket_timeout=LIMIT_S, **options)

    def keys(self, pattern: str = "*") -> list[str]:
        """Return the names of what it holds."""
        with self.client() as client:
            return sorted(key.decode() for key in client.keys(pattern))

    def freeze(self) -> None:
        """SIGSTOP: connections are accepted, and nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it for good. Idempotent."""
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None:
                self.thaw()
        self._end(signal.SIGKILL)
        self._temporary.cleanup()

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(LIMIT_S)
            self._process = None


def available() -> str:
    """Return why no real server can be started here; empty when one can."""
    try:
        find_server()
    except NoServer as error:
        return f"NO REAL VALKEY: {error}"
    return ""


@contextlib.contextmanager
def running(**options: Any) -> Iterator[Valkey]:
    """Start a server that ends with the block."""
    server = Valkey(**options).start()
    try:
        yield server
    finally:
        server.stop()
