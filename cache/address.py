"""Where a Redis or Valkey is, as one line: a server, a socket, Sentinels, or a Cluster.

======================================================  ==============================================
``redis://[[user]:password@]host[:port][/db]``          a server (``rediss://``: over TLS)
``unix://[[user]:password@]/path[?db=1]``               a server on a Unix socket
``redis+sentinel://[[user]:password@]host[:port],…/service[/db]``  the master that these Sentinels know
``redis+cluster://[[user]:password@]host[:port],…``     a Cluster that these nodes belong to
======================================================  ==============================================

``valkey`` may stand for ``redis`` everywhere, and the two last take ``rediss`` as well. In a query: ``ca=FILE`` the
certificates that are trusted, ``cert=FILE`` and ``key=FILE`` our own, ``verify=false`` for none; for Sentinel,
``sentinel_user`` and ``sentinel_password``. Names and passwords are percent-encoded where they hold ``@:/?#,``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379
_FORMS: Final = "redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://"


@dataclass(frozen=True, slots=True)
class Address:
    """What a line says. ``kind`` is ``server``, ``socket``, ``sentinel`` or ``cluster``."""

    kind: str
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    service: str = ""
    db: int = 0
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    sentinel_login: Mapping[str, str] = field(default_factory=dict, repr=False)
    files: Mapping[str, str] = field(default_factory=dict)
    verify: bool = True

    @property
    def label(self) -> str:
        """Where it is, without a secret: for logs and `paceline doctor`."""
        if self.kind == "socket":
            return f"unix://{self.path}"
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        scheme = "rediss" if self.tls else "redis"
        return f"{scheme}://{hosts}" if self.kind == "server" else f"{scheme}+{self.kind}://{hosts}"

    def options(self) -> dict[str, Any]:
        """The arguments of a redis-py connection that follow from it, where it connects to excepted."""
        options: dict[str, Any] = {"username": self.user, "password": self.password}
        if self.tls:
            names = {"ca": "ssl_ca_certs", "cert": "ssl_certfile", "key": "ssl_keyfile"}
            options |= {names[name]: file for name, file in self.files.items()}
            if not self.verify:
                options |= {"ssl_cert_reqs": "none", "ssl_check_hostname": False}
        return options


def parse_address(url: str) -> Address:
    """Return what ``url`` says. Raises ``ValueError`` that says what is wrong, and never repeats a password."""
    scheme, _, _ = url.partition("://")
    base, _, kind = scheme.lower().replace("valkeys", "rediss").replace("valkey", "redis").partition("+")
    if base == "unix" and not kind:
        return _socket(url)
    if base not in ("redis", "rediss") or kind not in ("", "sentinel", "cluster"):
        raise ValueError(f"an address begins with {_FORMS}")
    return _network(url, kind or "server", tls=base == "rediss")


def _socket(url: str) -> Address:
    login, path, query = _parts(url)
    if not path.startswith("/") or (login and "@" not in login):
        raise ValueError("a Unix socket's address is unix:// and an absolute path: unix:///run/valkey.sock")
    return Address("socket", path=unquote(path), db=_db(query.get("db", "0")), **_login(login))


def _network(url: str, kind: str, *, tls: bool) -> Address:
    before, path, query = _parts(url)
    login, at, hosts = before.rpartition("@")
    parts = [part for part in path.split("/") if part]
    service = ""
    if kind == "sentinel":
        if not parts:
            raise ValueError("a Sentinel's address ends with the service: redis+sentinel://host:26379/mymaster")
        service = parts.pop(0)
    if kind == "cluster" and parts:
        raise ValueError("a Cluster has no numbered databases")
    if len(parts) > 1:
        raise ValueError(f"after the host stands a database's number, not {path!r}")
    port = _SENTINEL_PORT if kind == "sentinel" else _PORT
    listed = tuple(_host(host, port) for host in hosts.split(","))
    if kind == "server" and len(listed) != 1:
        raise ValueError("several hosts are a Cluster's (redis+cluster://) or Sentinels (redis+sentinel://)")
    sentinel = {"username": query.get("sentinel_user"), "password": query.get("sentinel_password")}
    return Address(
        kind,
        listed,
        service=unquote(service),
        db=_db(parts[0] if parts else query.get("db", "0")),
        tls=tls,
        sentinel_login={name: value for name, value in sentinel.items() if value},
        files={name: query[name] for name in ("ca", "cert", "key") if name in query},
        verify=query.get("verify", "true").lower() not in ("false", "no", "0"),
        **_login(login + at),
    )


def _parts(url: str) -> tuple[str, str, dict[str, str]]:
    """What stands before the path, the path, and the query."""
    split = urlsplit("redis://" + url.partition("://")[2])
    known = {"db", "ca", "cert", "key", "verify", "sentinel_user", "sentinel_password"}
    query = {name: values[-1] for name, values in parse_qs(split.query).items()}
    if strange := sorted(query.keys() - known):
        raise ValueError(f"'{strange[0]}' means nothing in an address; there is {', '.join(sorted(known))}")
    return split.netloc, split.path, query


def _login(text: str) -> dict[str, Any]:
    if not text:
        return {}
    user, colon, password = text.removesuffix("@").partition(":")
    if not colon:
        raise ValueError("before the @ stands user:password, or :password")
    return {"user": unquote(user) or None, "password": unquote(password) or None}


def _host(text: str, port: int) -> tuple[str, int]:
    host, colon, digits = text.rpartition(":")
    if not colon or digits.endswith("]"):
        host, digits = text, str(port)
    host = host.removeprefix("[").removesuffix("]")
    if not host:
        raise ValueError("there is no host")
    if not digits.isdecimal() or not 0 < int(digits) < 65536:
        raise ValueError(f"the port of {host} is a number up to 65535")
    return host, int(digits)


def _db(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("a database is a number")
    return int(text)
