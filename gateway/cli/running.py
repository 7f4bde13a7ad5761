"""A Paceline that runs already, asked over HTTP."""

from __future__ import annotations

import http.client
import json
import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from gateway.address import url_of
from gateway.cli.output import UserError

if TYPE_CHECKING:
    from gateway.reach import FleetEntry
    from gateway.settings import Settings

KEY_VARIABLE = "PACELINE_KEY"
TIMEOUT_S = 5.0


class NotRunning(Exception):
    """Nobody answers at the address."""


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """Asks the gateway at ``url``, with the key in `PACELINE_KEY` when there is one."""

    url: str

    @classmethod
    def at(cls, url: str, settings: Settings) -> RunningGateway:
        """Return the one at ``url``, or, when that is empty, where the settings say that it listens."""
        return cls(url.rstrip("/") or url_of(settings.server.host, settings.server.port))

    def fleet(self) -> dict[str, Any]:
        """Return its deployments. Raises ``NotRunning``, and ``UserError`` for any other obstacle."""
        return self._ask("GET", "/admin/fleet")

    def deployments(self) -> Sequence[FleetEntry]:
        """Return its deployments alone. Raises as ``fleet`` does."""
        entries: Sequence[FleetEntry] = self.fleet()["deployments"]
        return entries

    def explain(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return what it would choose. Raises ``NotRunning``, and ``UserError`` for any other obstacle."""
        return self._ask("POST", "/admin/explain", question)

    def cache(self, *, counted: bool) -> dict[str, Any]:
        """Return what its cache did, and with ``counted`` what is in it. Raises as ``fleet`` does."""
        return self._ask("GET", f"/admin/cache?count={int(counted)}")

    def clear_cache(self, what: dict[str, Any]) -> dict[str, Any]:
        """Delete entries. Raises as ``fleet`` does."""
        return self._ask("POST", "/admin/cache/clear", what)

    def kept(self, key: str) -> dict[str, Any]:
        """Return the entries whose key begins so. Raises as ``fleet`` does."""
        return self._ask("GET", f"/admin/cache/entries/{key}")

    def experiments(self) -> dict[str, Any]:
        """Return all experiments. Raises as ``fleet`` does."""
        return self._ask("GET", "/admin/experiments")

    def experiment(self, name: str) -> dict[str, Any]:
        """Return what can be said of an experiment. Raises as ``fleet`` does."""
        return self._ask("GET", f"/admin/experiments/{quote(name, safe='')}")

    def start_experiment(self, what: dict[str, Any]) -> dict[str, Any]:
        """Begin one. Raises as ``fleet`` does."""
        return self._ask("POST", "/admin/experiments", what)

    def ramp_experiment(self, name: str, share: float | None) -> dict[str, Any]:
        """Give its new arms a share, the next one when left out. Raises as ``fleet`` does."""
        return self._ask("PATCH", f"/admin/experiments/{quote(name, safe='')}", {"share": share})

    def stop_experiment(self, name: str) -> dict[str, Any]:
        """End one. Raises as ``fleet`` does."""
        return self._ask("DELETE", f"/admin/experiments/{quote(name, safe='')}")

    def switch(self, model: str, to: str, *, ramp: bool) -> dict[str, Any]:
        """Have a deployment serve a model. Raises as ``fleet`` does."""
        return self._ask("POST", "/admin/switch", {"model": model, "to": to, "ramp": ramp})

    def switch_back(self, model: str) -> dict[str, Any]:
        """Undo a switch. Raises as ``fleet`` does."""
        return self._ask("POST", "/admin/switch/back", {"model": model})

    def request(self, request_id: str) -> dict[str, Any]:
        """Return a request with its diagnosis. Raises as ``fleet`` does, ``UserError`` also for an unknown one."""
        return self._ask("GET", f"/admin/requests/{quote(request_id, safe='')}")

    def now(self) -> dict[str, Any]:
        """Return what goes on. Raises as ``fleet`` does."""
        return self._ask("GET", "/admin/now")

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"{self.url!r} is no address", fix="It looks like http://127.0.0.1:7223.")
        headers = {"accept": "application/json", "content-type": "application/json"}
        if key := os.environ.get(KEY_VARIABLE):
            headers["authorization"] = f"Bearer {key}"
        connection = self._connection(parts.scheme, parts.hostname, parts.port)
        try:
            connection.request(method, parts.path + path, json.dumps(body) if body is not None else None, headers)
            response = connection.getresponse()
            return self._read(response.status, response.read())
        except http.client.HTTPException:
            raise self._not_ours() from None
        except OSError as error:
            raise NotRunning(f"nobody answers at {self.url}: {error.strerror or error}") from None
        finally:
            connection.close()

    def _connection(self, scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
        if scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=ssl.create_default_context())
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)

    def _read(self, status: int, data: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            answer = None
        if isinstance(answer, dict) and status == 200:
            return answer
        if not isinstance(answer, dict) or not isinstance(error := answer.get("error"), dict):
            raise self._not_ours()
        if status in (401, 403):
            fix = f"Put an admin's key into {KEY_VARIABLE} (auth.keys[].admin)."
            raise UserError(f"{self.url} says: {error.get('message')}", fix=fix)
        raise UserError(str(error.get("message")))

    def _not_ours(self) -> UserError:
        return UserError(f"what answers at {self.url} is not Paceline", fix="Say where it is with --url.")


@dataclass(frozen=True, slots=True)
class Beside:
    """The Paceline that runs beside a command. ``deployments`` are ``None`` when there is none; ``ask`` returns them as
    they are now, none once it has ended."""

    deployments: Sequence[FleetEntry] | None = None
    ask: Callable[[], Sequence[FleetEntry]] | None = None


def beside(url: str, settings: Settings) -> Beside:
    """Look for the Paceline at ``url``, or where the settings say.

    Raises ``UserError`` for any obstacle, and when nobody is at an address that was named.
    """
    gateway = RunningGateway.at(url, settings)

    def ask() -> Sequence[FleetEntry]:
        try:
            return gateway.deployments()
        except (NotRunning, UserError):
            return ()  # it has ended, or is ending: then it serves nothing

    try:
        return Beside(gateway.deployments(), ask)
    except NotRunning as nobody:
        if url:
            raise UserError(str(nobody), fix="Start it with `paceline up`, or leave out --url.") from None
        return Beside()
