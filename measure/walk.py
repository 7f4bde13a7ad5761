"""The way through a grid: which cell comes next, and how much is left. Pure: no engine, no clock."""

from __future__ import annotations

from measure.grid import Grid, why_stopped
from measure.pace import Pace
from measure.records import Cell, Record
from policies.types import Deployment, Operation

Shape = tuple[int, int]
"""Prompt and output tokens."""


class Walk:
    """The smallest request first: all shapes alone, from the least work to the most, so that routing has its curve
    early; then each shape with 2, 4, 8, … requests at once, for as long as ``Grid`` says.
    """

    def __init__(self, grid: Grid, deployment: Deployment, operation: Operation) -> None:
        self._grid = grid
        self._operation = operation
        self._shapes = grid.shapes(deployment, operation)
        self._done: dict[Shape, list[Record]] = {shape: [] for shape in self._shapes}
        self._pace = Pace()
        usual = 4 * deployment.slots if deployment.slots else 8
        self._usual_end = min(usual, grid.ladder()[-1])

    def next(self) -> Cell | None:
        """Return the next cell; ``None`` when the grid is done."""
        for shape in self._shapes:
            if not self._done[shape]:
                return self._grid.cell(shape, 1, self._operation)
        for shape in self._shapes:
            step = self._grid.step_after(self._done[shape])
            if step is not None:
                return self._grid.cell(shape, step, self._operation)
        return None

    def took(self, record: Record, seconds: float | None) -> None:
        """Take up a cell that is done; ``seconds`` is ``None`` when it was not measured just now."""
        shape = (record.asked.prompt_tokens, record.asked.output_tokens)
        done = self._done[shape]
        done.append(record)
        if seconds is not None and not record.failed:
            self._pace.took(shape, record.asked.concurrency, seconds)
        if why_stopped(done) and record.asked.concurrency > 1:
            self._usual_end = record.asked.concurrency

    def left(self) -> int:
        """Return how many cells probably follow."""
        return sum(len(self._steps(shape)) for shape in self._shapes)

    def left_s(self) -> float | None:
        """Return how many seconds they will probably take; ``None`` before anything was measured."""
        expected = [self._pace.expects(shape, step) for shape in self._shapes for step in self._steps(shape)]
        known = [seconds for seconds in expected if seconds is not None]
        return sum(known) if len(known) == len(expected) else None

    def _steps(self, shape: Shape) -> list[int]:
        """The concurrencies that probably follow for a shape: as far as another shape needed to go."""
        step = self._grid.step_after(self._done[shape])
        if step is None:
            return []
        return [each for each in self._grid.ladder() if each == step or step < each <= self._usual_end]
