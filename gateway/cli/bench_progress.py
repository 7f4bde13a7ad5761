"""How a benchmark is followed: a bar with the time that is left, and a line for each cell, on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gateway.cli.bench_table import cell_line

if TYPE_CHECKING:
    from rich.progress import Progress

    from measure.step import Step


class BenchProgress:
    """Shows what a benchmark tells: a bar where standard error is a terminal, the lines everywhere."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None, deployment="", left="")
        self._note = ""

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def note(self, note: str) -> None:
        """Show what happens before the first cell."""
        self._progress.update(self._task, description=note)

    def waiting(self, reason: str) -> None:
        """Say what is waited for; "" when that is over."""
        if reason and reason != self._note:
            self.say(f"waiting for live traffic to end: {reason}")
        self._note = reason
        self._progress.update(self._task, description=f"waiting: {reason}" if reason else "")

    def step(self, step: Step) -> None:
        """Show where the benchmark stands."""
        if step.record is not None:
            self.say(cell_line(step.record, kept=step.kept))
        left = "" if step.left_s is None else f"{_clock(step.left_s)} left"
        self._progress.update(
            self._task,
            deployment=step.deployment,
            completed=step.done,
            total=max(step.total, step.done, 1),
            description=step.note,
            left=left,
        )


@contextmanager
def bench_progress() -> Iterator[BenchProgress]:
    """Show progress while the block runs."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.fields[deployment]}"), BarColumn(), MofNCompleteColumn())
    more = (TextColumn("{task.fields[left]}"), TextColumn("{task.description}"))
    with Progress(*columns, *more, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield BenchProgress(progress)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
