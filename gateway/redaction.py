"""Keeps secrets out of everything that leaves the process as text: logs, errors, reports."""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "[hidden]"

MAX_SECRETS = 4096
"""More secrets than any configuration holds; a bound, so that a caller's mistake cannot grow it for ever."""

MIN_SECRET_LENGTH = 6
"""Shorter strings stand in ordinary words, and hiding those would make text unreadable."""

_USERINFO = re.compile(r"(?<=://)[^/\s@'\"]+@")
_QUERY_SECRET = re.compile(r"([?&](?:api[-_]?key|key|token|access[-_]token|secret|password)=)[^&\s'\"]+", re.IGNORECASE)
_BEARER = re.compile(r"\b(Bearer|Basic)\s+(?=\S*[0-9=])[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE)
_KEY_SHAPE = re.compile(r"\b(?:(?:sk|pk|rk|xai)-|(?:hf|gsk)_)[A-Za-z0-9_-]{16,}")


class Redactor:
    """Replaces known secrets, and whatever has the shape of one, by ``[hidden]``."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self.learn(secrets)

    def learn(self, secrets: Iterable[str]) -> None:
        """Hide these from now on; those that are too short to be secrets, or past ``MAX_SECRETS``, are left out."""
        for secret in secrets:
            if len(secret) >= MIN_SECRET_LENGTH and len(self._secrets) < MAX_SECRETS:
                self._secrets.add(secret)
        if self._secrets:
            longest_first = sorted(self._secrets, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def __call__(self, text: str) -> str:
        """Return ``text`` without secrets, without credentials in URLs and without anything shaped like a key."""
        if self._pattern is not None:
            text = self._pattern.sub(HIDDEN, text)
        if "://" in text:
            text = _USERINFO.sub("", text)
        text = _QUERY_SECRET.sub(rf"\1{HIDDEN}", text)
        text = _BEARER.sub(rf"\1 {HIDDEN}", text)
        return _KEY_SHAPE.sub(HIDDEN, text)


redact = Redactor()
"""The process's own: start-up teaches it the configured secrets, logs and errors go through it."""
