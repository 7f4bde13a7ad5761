"""Where Paceline keeps what it learns on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def data_folder() -> Path:
    """The user's data folder for Paceline: ``PACELINE_DATA``, else what the platform says. It need not exist yet."""
    if chosen := os.environ.get("PACELINE_DATA"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "Paceline"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "Paceline"
    shared = Path(os.environ.get("XDG_DATA_HOME") or "")
    # The XDG specification: a relative path there is to be ignored.
    return (shared if shared.is_absolute() else Path.home() / ".local" / "share") / "paceline"


def default_path() -> Path:
    """The file with the measurement records."""
    return records_in(data_folder())


def records_in(folder: Path) -> Path:
    """The file with the measurement records in a data folder."""
    return folder / "records.sqlite3"
