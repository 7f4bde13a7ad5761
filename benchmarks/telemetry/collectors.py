"""Collectors as the gateway may meet them: one that takes all, one that is dead, one that is frozen."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from benchmarks.overhead.processes import free_port


class _Taker(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Silent."""


@contextlib.contextmanager
def taking() -> Iterator[str]:
    """One that reads what it is sent and says that all is well."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Taker)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def dead() -> Iterator[str]:
    """An address where nobody listens."""
    yield f"http://127.0.0.1:{free_port()}"


@contextlib.contextmanager
def frozen() -> Iterator[str]:
    """One to which connections can be made, and that neither reads nor answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
