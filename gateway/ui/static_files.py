"""The dashboard's own files: read once, served from memory, with a policy under which a page can load nothing else."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from starlette.responses import Response

FOLDER: Final = Path(__file__).with_name("static")
INDEX: Final = "index.html"
_NO_KEYS: Final = b'data-keys="off"'
_KEYS: Final = b'data-keys="on"'

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types lit-html"
)
"""No inline script or style, nothing foreign, no frame around it, no text that becomes markup but lit-html's own."""

_MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS: Final = {
    "cache-control": "no-cache",
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class StaticFiles:
    """All files under a folder that a page may load, by their path below it.

    The page itself is told whether it needs a key, so that it asks for one before it is refused.
    """

    def __init__(self, *, needs_key: bool) -> None:
        self._files: dict[str, tuple[bytes, dict[str, str]]] = {
            path.relative_to(FOLDER).as_posix(): _with_headers(path, path.read_bytes())
            for path in sorted(FOLDER.rglob("*"))
            if path.suffix in _MEDIA_TYPES
        }
        if needs_key:
            index = FOLDER / INDEX
            self._files[INDEX] = _with_headers(index, index.read_bytes().replace(_NO_KEYS, _KEYS, 1))

    def answer(self, path: str, known: str = "") -> Response | None:
        """Return the answer, ``None`` for a file that is not there; ``known`` is the client's `If-None-Match`."""
        found = self._files.get(path or INDEX)
        if found is None:
            return None
        data, headers = found
        if known == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(data, headers=headers)


def _with_headers(path: Path, data: bytes) -> tuple[bytes, dict[str, str]]:
    etag = f'"{hashlib.sha256(data).hexdigest()[:20]}"'
    return data, {**_HEADERS, "content-type": _MEDIA_TYPES[path.suffix], "etag": etag}
