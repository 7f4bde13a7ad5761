"""A progress bar for a measurement, on standard error, where that is a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Bar(Protocol):
    """Tells how far something is. The same as ``measure.progress.Progress``."""

    def __call__(self, deployment: str, done: int, total: int, note: str) -> None: ...


@contextmanager
def progress_bar() -> Iterator[Bar]:
    """Show one line per deployment, with the time that is left, while the block runs."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.fields[deployment]}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns, TextColumn("{task.description}"), console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        tasks: dict[str, TaskID] = {}

        def tell(deployment: str, done: int, total: int, note: str) -> None:
            if deployment not in tasks:
                tasks[deployment] = progress.add_task(note, deployment=deployment)
            progress.update(tasks[deployment], completed=done, total=total, description=note)

        yield tell
