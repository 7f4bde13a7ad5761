"""Which cells a benchmark has, in which order, and where it stops."""

from __future__ import annotations

import pytest
from measurements import deployment, record, run

from measure.grid import Grid, why_stopped
from measure.pace import Pace
from measure.records import Cell, Kind, Record
from measure.walk import Walk
from policies.types import Operation

WRITES = Operation.COMPLETION


def lengths(context: int | None, **grid: object) -> list[int]:
    shapes = Grid(**grid).shapes(deployment(context=context), WRITES)  # type: ignore[arg-type]
    return sorted({prompt for prompt, _ in shapes})


def cell(prompt: int, output: int, concurrency: int = 1, prefix: int = 0) -> Cell:
    return Cell(Kind.GRID, WRITES, prompt, output, concurrency, prefix)


def measured(of: Cell, ttft_s: float = 1.0, failed: str = "") -> Record:
    runs = [] if failed else [run(of.prompt_tokens, ttft_s)]
    return record(
        *runs,
        kind=Kind.GRID,
        asked_tokens=of.prompt_tokens,
        asked_output=of.output_tokens,
        concurrency=of.concurrency,
        failed=failed,
    )


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        (None, [64, 256, 1024]),
        (8192, [64, 256, 1024, 4096, 7257]),
        (2048, [64, 256, 1024, 1728]),
        (1500, [64, 256, 1024]),
        (256, [64, 115]),
        (140, [10]),
    ],
)
def test_prompt_lengths_go_up_to_the_context(context: int | None, expected: list[int]) -> None:
    assert lengths(context) == expected


def test_prompts_that_were_asked_for_are_measured_as_far_as_they_fit() -> None:
    grid = Grid(prompt_tokens=(100, 2000, 1950), output_tokens=(32, 128))
    assert grid.shapes(deployment(context=2048), WRITES) == [(100, 32), (100, 128), (1950, 32), (2000, 32)]


def test_embeddings_have_no_generation_limit() -> None:
    assert Grid(prompt_tokens=(64,)).shapes(deployment(), Operation.EMBEDDINGS) == [(64, 0)]


def test_the_smallest_comes_first_and_concurrency_is_raised_only_after_all_were_measured_alone() -> None:
    walk = Walk(Grid(prompt_tokens=(64, 256), output_tokens=(32, 128), concurrency=2), deployment(), WRITES)
    seen = []
    while (step := walk.next()) is not None:
        seen.append(step)
        walk.took(measured(step), 1.0)
    shapes = [(64, 32), (64, 128), (256, 32), (256, 128)]
    assert seen == [*(cell(*shape) for shape in shapes), *(cell(*shape, concurrency=2) for shape in shapes)]


def test_concurrency_is_doubled_until_the_time_to_the_first_token_has_tripled() -> None:
    walk = Walk(Grid(prompt_tokens=(64,), output_tokens=(32,), concurrency=64), deployment(), WRITES)
    ttft_s = {1: 1.0, 2: 1.2, 4: 2.9, 8: 3.0, 16: 9.0}
    seen = []
    while (step := walk.next()) is not None:
        seen.append(step.concurrency)
        walk.took(measured(step, ttft_s[step.concurrency]), 1.0)
    assert seen == [1, 2, 4, 8]


@pytest.mark.parametrize(("limit", "expected"), [(1, [1]), (2, [1, 2]), (7, [1, 2, 4])])
def test_concurrency_ends_at_the_limit(limit: int, expected: list[int]) -> None:
    assert Grid(concurrency=limit).ladder() == expected


def test_a_failed_cell_ends_its_shape_and_no_other() -> None:
    walk = Walk(Grid(prompt_tokens=(64, 256), output_tokens=(32,), concurrency=4), deployment(), WRITES)
    seen = []
    while (step := walk.next()) is not None:
        seen.append((step.prompt_tokens, step.concurrency))
        failed = "Busy: no more" if step == cell(64, 32, 2) else ""
        walk.took(measured(step, failed=failed), 1.0)
    assert seen == [(64, 1), (256, 1), (64, 2), (256, 2), (256, 4)]


def test_why_concurrency_is_raised_no_further_is_said() -> None:
    alone = measured(cell(64, 32))
    assert why_stopped([alone]) == ""
    assert why_stopped([alone, measured(cell(64, 32, 2), 3.5)]) == "TTFT is 3.5 times that of one request"
    assert why_stopped([alone, measured(cell(64, 32, 2), failed="Busy: full")]) == "Busy: full"


def test_with_a_prefix_all_but_the_end_of_a_prompt_is_the_same_each_time() -> None:
    grid = Grid(prompt_tokens=(8, 64), output_tokens=(32,), prefix_cache=True)
    assert grid.shapes(deployment(), WRITES) == [(64, 32)]
    assert grid.cell((64, 32), 1, WRITES) == cell(64, 32, prefix=48)


def test_what_is_left_shrinks_when_a_shape_proves_that_more_at_once_is_of_no_use() -> None:
    grid = Grid(prompt_tokens=(64, 256), output_tokens=(32,), concurrency=64)
    walk = Walk(grid, deployment(slots=4), WRITES)
    assert walk.left() == 2 * 5
    for ttft_s in (1.0, 1.0, 5.0):
        step = walk.next()
        assert step is not None
        walk.took(measured(step, ttft_s), 1.0)
    assert walk.left() == 1


def test_the_time_that_is_left_is_told_once_something_was_measured() -> None:
    walk = Walk(Grid(prompt_tokens=(64, 256), output_tokens=(32,), concurrency=1), deployment(), WRITES)
    assert walk.left_s() is None
    walk.took(measured(cell(64, 32)), 10.0)
    left_s = walk.left_s()
    assert left_s is not None
    assert left_s > 10.0
    walk.took(measured(cell(256, 32)), 20.0)
    assert walk.left_s() == 0.0


def test_a_cell_is_expected_to_take_longer_with_its_tokens_and_with_more_at_once() -> None:
    pace = Pace()
    assert pace.expects((64, 32), 1) is None
    pace.took((64, 32), 1, 4.0)
    assert pace.expects((64, 32), 2) == 8.0
    longer, more = pace.expects((640, 32), 1), pace.expects((64, 128), 1)
    assert longer is not None
    assert more is not None
    assert min(longer, more) > 4.0
