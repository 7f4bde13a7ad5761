"""Whether Paceline's packages are its own: their names are plain, and other distributions have an `adapters` too."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PACKAGES = ("adapters", "cache", "engine", "measure", "policies")


def strangers(home: Path | None = None) -> dict[str, str]:
    """Return the packages that are not found beside ``gateway/`` (or in ``home``), each with where it is instead."""
    home = home or Path(__file__).resolve().parent.parent
    found = {name: _folder(name) for name in PACKAGES}
    return {
        name: str(folder) if folder else "nowhere"
        for name, folder in found.items()
        if folder is None or folder.resolve().parent != home
    }


def _folder(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None
