"""Clients' keys: known by their hashes, compared in constant time, never kept.

A key that `paceline key` makes has 256 random bits, so that a plain SHA-256 is as good as any slow hash: there is
nothing to guess. Keys that people choose themselves come from a variable and have to be long.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.errors import ApiError
from gateway.exposure import LocalGuard
from gateway.settings import Settings
from gateway.settings_errors import Problem, SettingsError
from gateway.settings_parts import AuthSettings

KEY_PREFIX = "sk-pl-"
HASH_PREFIX = "sha256:"
MIN_KEY_LENGTH = 16
"""Characters; what is shorter can be guessed."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request: the name of the key that was shown, empty without keys."""

    name: str = ""
    admin: bool = False


ANYONE = Caller(admin=True)
"""Who calls when there are no keys: somebody on this machine, who could read the configuration as well."""


def new_key() -> str:
    """Return a new random key."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def hash_key(key: str) -> str:
    """Return what `auth.keys[].hash` holds for a key."""
    return HASH_PREFIX + hashlib.sha256(key.encode()).hexdigest()


class KeyRing:
    """The keys that are accepted. Raises ``SettingsError`` for one that is absent, too short or there twice."""

    def __init__(self, auth: AuthSettings, environ: Mapping[str, str] = os.environ) -> None:
        self._callers: dict[bytes, tuple[bytes, Caller]] = {}
        for index, key in enumerate(auth.keys):
            stored = key.hash or hash_key(_from_environment(f"auth.keys[{index}]", key.env or "", environ))
            digest = bytes.fromhex(stored.removeprefix(HASH_PREFIX))
            if digest in self._callers:
                other = self._callers[digest][1].name
                problem = Problem(
                    f"auth.keys[{index}]", f"is the same key as {other}'s", "Make one with `paceline key`."
                )
                raise SettingsError([problem])
            self._callers[digest] = (digest, Caller(key.name, key.admin))
        self._nobody = (secrets.token_bytes(32), ANYONE)

    def __bool__(self) -> bool:
        """Whether there are keys at all."""
        return bool(self._callers)

    def authenticate(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Return who calls, from `Authorization: Bearer` or `x-api-key` (names in lower case, as ASGI has them).

        Without keys it is ``ANYONE``, whatever the client sends. Raises ``ApiError`` (401). The table is keyed by
        digests, which a caller cannot steer, and its hit is compared in constant time.
        """
        if not self._callers:
            return ANYONE
        key = _shown(headers)
        if not key:
            raise _unauthorised("A key is needed: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")
        digest = hashlib.sha256(key).digest()
        stored, caller = self._callers.get(digest, self._nobody)
        if not hmac.compare_digest(stored, digest):
            raise _unauthorised("This key is not accepted. `paceline key` makes one; its hash belongs into auth.keys.")
        return caller


class Door:
    """Who may come in: by key where there are keys, otherwise whoever is on this machine and no web page."""

    def __init__(self, settings: Settings) -> None:
        self._ring = KeyRing(settings.auth)
        self._guard = None if self._ring else LocalGuard(settings.server)

    def let_in(self, scope: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> Caller:
        """Return who calls; ``headers`` are those of the ASGI ``scope``. Raises ``ApiError`` (401 or 403)."""
        if self._guard is not None:
            self._guard.check(scope["scheme"], headers)
        return self._ring.authenticate(headers)


def require_admin(caller: Caller) -> None:
    """Raise ``ApiError`` (403) unless the caller's key is an admin's."""
    if not caller.admin:
        raise ApiError(403, f"The key {caller.name!r} is not an admin key (auth.keys[].admin).", code="admin_only")


def _shown(headers: Mapping[bytes, bytes]) -> bytes:
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    if token and scheme.lower() == b"bearer":
        return token.strip()
    return headers.get(b"x-api-key", b"").strip()


def _unauthorised(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers=[(b"www-authenticate", b"Bearer")])


def _from_environment(path: str, variable: str, environ: Mapping[str, str]) -> str:
    key = environ.get(variable, "")
    if not key:
        raise SettingsError([Problem(path, f"names the variable {variable}, which is not set", "Set it.")])
    if len(key) < MIN_KEY_LENGTH:
        fix = f"Use {MIN_KEY_LENGTH} characters or more; `paceline key` makes a good one."
        raise SettingsError([Problem(path, f"takes a key from {variable} that is too short to be safe", fix)])
    return key
