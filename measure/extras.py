"""Packages that only some need: imported when they are used, and missed in words."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


class MissingExtra(Exception):
    """A package of an optional extra is not installed; the message says how to get it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed")
        self.message = str(self)
        self.fix = f'It comes with an extra: pipx install "paceline[{extra}]", or pip install {package} beside it.'


def optional(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import ``module``. Raises ``MissingExtra`` when its package is not installed."""
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise MissingExtra(package, extra, purpose) from None
