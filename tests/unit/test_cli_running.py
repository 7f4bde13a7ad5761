"""What the command line makes of the answers at an address: real sockets, scripted answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gateway.cli.output import UserError
from gateway.cli.running import NotRunning, RunningGateway
from gateway.settings import ServerSettings, Settings

Serve = Callable[[int, bytes], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers that give every request the same answer; ``serve(status, body)`` returns the address."""
    servers: list[tuple[ThreadingHTTPServer, threading.Thread]] = []

    def start(status: int, body: bytes) -> str:
        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.replace(b"KEY", self.headers.get("authorization", "none").encode()))

            do_GET = do_POST = answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


def error(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "t", "param": None, "code": None}}).encode()


def gateway(url: str) -> RunningGateway:
    return RunningGateway.at(url, Settings())


def test_it_is_looked_for_where_the_settings_say_that_it_listens() -> None:
    settings = Settings(server=ServerSettings(host="0.0.0.0", port=81))
    assert RunningGateway.at("", settings).url == "http://127.0.0.1:81"
    assert RunningGateway.at("http://there:1/", settings).url == "http://there:1"


def test_the_key_comes_from_the_environment(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    url = serve(200, b'{"deployments": "KEY"}')
    monkeypatch.delenv("PACELINE_KEY", raising=False)
    assert gateway(url).fleet() == {"deployments": "none"}
    monkeypatch.setenv("PACELINE_KEY", "abc")
    assert gateway(url).explain({"model": "m"}) == {"deployments": "Bearer abc"}


def test_nobody_at_the_address_is_not_an_error_of_the_user() -> None:
    with pytest.raises(NotRunning, match="nobody answers"):
        gateway("http://127.0.0.1:1").fleet()


@pytest.mark.parametrize("status", [401, 403])
def test_a_gateway_that_asks_for_a_key_says_where_to_put_it(serve: Serve, status: int) -> None:
    with pytest.raises(UserError) as caught:
        gateway(serve(status, error("a key is needed"))).fleet()
    assert "PACELINE_KEY" in caught.value.fix


def test_an_error_is_told_in_the_gateways_words(serve: Serve) -> None:
    with pytest.raises(UserError, match="does not exist"):
        gateway(serve(404, error("The model 'x' does not exist."))).explain({})


@pytest.mark.parametrize(
    ("status", "body"), [(200, b"<html>"), (200, b"[1]"), (404, b'{"detail": "Not Found"}'), (500, b""), (200, b"")]
)
def test_whatever_else_answers_is_not_taken_for_paceline(serve: Serve, status: int, body: bytes) -> None:
    with pytest.raises(UserError, match="is not Paceline"):
        gateway(serve(status, body)).fleet()


@pytest.mark.parametrize("url", ["there", "ftp://there", "http://"])
def test_what_is_no_address_is_said_so(url: str) -> None:
    with pytest.raises(UserError, match="is no address"):
        gateway(url).fleet()
