"""Checks of this machine: packages, open files, memory, the data folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil

from gateway.checks.finding import Finding, fix, note, ok, warn
from gateway.file_limit import file_limit, needed_files
from gateway.packages import strangers
from gateway.settings import EngineSettings, Settings

MIB = 1024 * 1024
LITTLE_DISK_BYTES = 512 * MIB
LITTLE_MEMORY = 0.1


def check_machine(settings: Settings) -> Iterator[Finding]:
    """Look at everything that can be seen without asking an engine."""
    yield from check_packages()
    yield from check_files(settings)
    yield from check_memory(settings)
    yield from check_data(settings.data_dir)


def check_packages(home: Path | None = None) -> Iterator[Finding]:
    """Are Paceline's packages its own?"""
    if not (others := strangers(home)):
        yield ok("packages", "all of Paceline's packages are its own")
    for name, where in others.items():
        todo = "Install Paceline into an environment of its own (`pipx install paceline`)."
        yield fix("packages", f"{name!r} is another distribution's: {where}", todo)


def check_files(settings: Settings) -> Iterator[Finding]:
    """Are there enough open files for the configured limits?"""
    limit, needed = file_limit(), needed_files(settings.limits)
    if limit.hard >= needed:
        yield ok("files", f"{needed} open files are enough for the limits, and allowed")
    else:
        todo = (
            f"Raise it (`ulimit -Hn {needed}`, or LimitNOFILE= in systemd), or lower limits.max_concurrent and queue."
        )
        yield warn("files", f"{limit.hard} open files are allowed, the limits may need {needed}", todo)


def check_memory(settings: Settings) -> Iterator[Finding]:
    """Is there memory for the models that are to be started, and is the machine swapping?"""
    memory = psutil.virtual_memory()
    free = f"{memory.available // MIB} of {memory.total // MIB} MiB memory are free"
    needed = sum(_model_bytes(engine) for engine in settings.engines)
    if needed > memory.available:
        todo = "Start fewer of them, or smaller quantisations."
        yield warn("memory", f"{free}; the models to be started have {needed // MIB} MiB", todo)
    elif memory.available < LITTLE_MEMORY * memory.total:
        yield warn("memory", f"only {free}", "Engines that swap are slow: stop what is not needed.")
    else:
        yield ok("memory", free)


def check_data(folder: Path) -> Iterator[Finding]:
    """Can records be kept?"""
    there = next((parent for parent in (folder, *folder.parents) if parent.exists()), Path("/"))
    if (folder.exists() and not folder.is_dir()) or not os.access(there, os.W_OK | os.X_OK):
        yield fix("data", f"{folder} cannot be written", "Give the user the right to, or set data_dir.")
        return
    free = shutil.disk_usage(there).free
    if free < LITTLE_DISK_BYTES:
        yield warn("data", f"only {free // MIB} MiB are free for {folder}", "Make room, or set data_dir.")
    elif folder.exists():
        yield ok("data", f"records are kept in {folder}")
    else:
        yield note("data", f"no records yet; they will be kept in {folder}")


def _model_bytes(engine: EngineSettings) -> int:
    if engine.launch is None or not engine.launch.model:
        return 0
    path = Path(engine.launch.model).expanduser()
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.glob("*.safetensors")) if path.is_dir() else 0
