"""Things that are made once, atomically, and kept outside of the checkout."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine_kit.errors import UnavailableError
from engine_kit.process import say

LOCK_LIMIT_S = 900.0
LOCK_POLL_S = 0.2


def root() -> Path:
    """The cache folder: `ENGINE_KIT_CACHE`, else `paceline/engines` in the user's cache folder."""
    if chosen := os.environ.get("ENGINE_KIT_CACHE"):
        return Path(chosen).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser().absolute() / "paceline" / "engines"


def digest(*parts: str) -> str:
    """A short name for a recipe: another recipe gets another place in the cache."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file or folder of the cache, and how to make it.

    `build` receives a path that does not exist, in the folder where the artifact will be, and makes the file or
    folder there. `result` is the part of it that callers want, relative to the artifact ("" for the artifact itself).
    """

    name: str
    build: Callable[[Path], None]
    result: str = ""

    @property
    def place(self) -> Path:
        """Where the artifact lies once it is made."""
        return root() / self.name

    @property
    def path(self) -> Path:
        """What callers want of it."""
        return self.place / self.result if self.result else self.place

    @property
    def made(self) -> bool:
        """Whether it is there. It only ever appears whole, so nothing else needs a look."""
        return self.place.exists()

    def make(self, lock_limit_s: float = LOCK_LIMIT_S) -> Path:
        """Return `path`, making the artifact first if it is not there.

        Raises:
            KitError: whatever kept `build` from finishing; nothing of the attempt is left.
            UnavailableError: another process still makes it after `lock_limit_s`.
        """
        if self.made:
            return self.path
        with _locked(self.name, lock_limit_s):
            if not self.made:
                self._make_aside()
        return self.path

    def _make_aside(self) -> None:
        self.place.parent.mkdir(parents=True, exist_ok=True)
        for left_over in self.place.parent.glob(f".{self.place.name}.*.part"):
            _remove(left_over)  # of a process that was killed: whoever lives holds the lock, and that is us
        aside = self.place.with_name(f".{self.place.name}.{os.getpid()}.part")
        try:
            self.build(aside)
            aside.rename(self.place)
        finally:
            _remove(aside)


@contextmanager
def _locked(name: str, limit_s: float) -> Iterator[None]:
    lock = root() / "locks" / f"{name.replace('/', '.')}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + limit_s
    waiting = False
    with lock.open("w") as held:
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise UnavailableError(f"another process is still making {name} after {limit_s:g} s") from None
            if not waiting:
                say(f"waiting for another process that is making {name}")
                waiting = True
            time.sleep(LOCK_POLL_S)
        yield  # closing the file gives the lock back, and so does the death of this process


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
