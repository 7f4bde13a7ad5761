"""Package registries through pip and uv, as this machine has them configured, and environments made from them."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from engine_kit.cache import Artifact, digest
from engine_kit.errors import ChecksumError, UnavailableError
from engine_kit.process import ChildError, run

DOWNLOAD_LIMIT_S = 600.0
INSTALL_LIMIT_S = 1800.0
_OTHER_HASH = re.compile(r"hash mismatch|do not match the hashes", re.IGNORECASE)


def verify(file: Path, sha256: str) -> None:
    """Raise ChecksumError unless the SHA-256 of `file` is `sha256`."""
    with file.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != sha256:
        raise ChecksumError(f"{file.name} has SHA-256 {found}, not {sha256}: refused")


def unpack_wheel(requirement: str, sha256: str, into: Path) -> None:
    """Unpack the wheel of `requirement` (NAME==VERSION), without its dependencies, into the folder `into`.

    Raises:
        ChecksumError: the registry's wheel is another one.
        UnavailableError: no installer here, or the registry did not give it.
    """
    with _requirements([_hashed(requirement, sha256)]) as file:
        options = ["--no-deps", "--require-hashes", "--target", str(into), "-r", file]
        _fetch([*_installer(), "install", *options], f"fetching {requirement}")


def download_source(requirement: str, sha256: str, into: Path) -> Path:
    """Download the source archive of `requirement` (NAME==VERSION) into `into`; return its path.

    Raises:
        ChecksumError: the registry's archive is another one.
        UnavailableError: no pip to be had here, or the registry did not give it.
    """
    name = requirement.partition("==")[0]
    into.mkdir(parents=True, exist_ok=True)
    with _requirements([_hashed(requirement, sha256)]) as file:
        options = ["--no-deps", "--no-binary", name, "--require-hashes", "--dest", str(into), "-r", file]
        _fetch([*_pip(), "download", *options], f"fetching the source of {requirement}")
    (archive,) = into.glob("*.tar.gz")
    verify(archive, sha256)
    return archive


def environment(name: str, requirements: Sequence[str], overrides: Sequence[str] = ()) -> Artifact:
    """A virtual environment for this Python with `requirements`; its result is the path of its python.

    `overrides` are requirements that replace what the packages themselves ask for.
    """

    def build(folder: Path) -> None:
        uv = _uv()
        # Relocatable, because it is made aside and then renamed.
        _fetch(
            [*uv, "venv", "--relocatable", "--python", sys.executable, str(folder)], f"making the {name} environment"
        )
        with _requirements(overrides) as file:
            # Compiled, because an engine that may write no bytecode would compile all that it imports at each start.
            options = ["--compile-bytecode", "--python", str(folder / "bin/python"), "--override", file]
            install = [*uv, "pip", "install", *options, *requirements]
            _fetch(install, f"installing {', '.join(requirements)} (kept for the next time)", INSTALL_LIMIT_S)

    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    recipe = digest(python, *requirements, "overrides", *overrides, "compiled")
    return Artifact(f"{name}-py{python}-{recipe}", build, "bin/python")


def _installer() -> list[str]:
    return [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else [*_uv(), "pip"]


def _pip() -> list[str]:
    return [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else [*_uv(), "tool", "run", "pip"]


def _uv() -> list[str]:
    if found := shutil.which("uv"):
        return [found]

    def build(folder: Path) -> None:
        # An environment that uv made has no pip: there uv has to have been fetched by another one before.
        if not importlib.util.find_spec("pip"):
            raise UnavailableError("neither uv nor pip is here: install one of them, e.g. with `python3 -m ensurepip`")
        _fetch([sys.executable, "-m", "pip", "install", "--target", str(folder), "uv"], "fetching uv")

    return [str(Artifact("uv", build, "bin/uv").make())]


def _hashed(requirement: str, sha256: str) -> str:
    return f"{requirement} --hash=sha256:{sha256}"


@contextmanager
def _requirements(lines: Sequence[str]) -> Iterator[str]:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(lines))
        file.flush()
        yield file.name


def _fetch(command: Sequence[str], what: str, limit_s: float = DOWNLOAD_LIMIT_S) -> None:
    try:
        run(command, limit_s=limit_s, what=what)
    except ChildError as error:
        if _OTHER_HASH.search(error.output):
            raise ChecksumError(f"the package's checksum differs, refused ({what})\n{error.output}") from error
        raise UnavailableError(str(error)) from error
