"""How a measurement tells how far it is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called on the event loop after each step; has to return at once. ``total`` may shrink on the way."""

    def __call__(self, deployment: str, done: int, total: int, note: str) -> None: ...


def silent(deployment: str, done: int, total: int, note: str) -> None:
    """For those who do not want to know."""
