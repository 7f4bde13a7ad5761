"""A picture has one line for each deployment, and is the same for the same records."""

from __future__ import annotations

import re
import sys
from xml.etree import ElementTree

import pytest
from measurements import deployment, pair_record, record, run

from measure.extras import MissingExtra
from measure.plot import NothingToDraw, Picture, draw
from measure.plot_series import Panel, panels
from measure.records import Kind, Record
from policies.types import Deployment, Precision

INT4 = deployment()
INT8 = deployment("smol-int8", precision=Precision.INT8, scheme="Q8_0")


def cell(of: Deployment, prompt: int = 64, concurrency: int = 1, slow: float = 1.0, limit: int = 16) -> Record:
    runs = [run(prompt, slow * prompt / 100 * noise, decode_s=slow * noise) for noise in (0.9, 1.0, 1.2)]
    return record(*runs, of=of, kind=Kind.GRID, asked_tokens=prompt, concurrency=concurrency, asked_output=limit)


LENGTHS = [cell(of, prompt) for of in (INT4, INT8) for prompt in (1024, 64, 256)]
GRID = [*LENGTHS, *(cell(of, 256, concurrency, slow=concurrency) for of in (INT4, INT8) for concurrency in (2, 4))]


def lines(panel: Panel) -> dict[str, list[int]]:
    return {line.label: [point.x for point in line.points] for line in panel.lines}


def test_ttft_is_drawn_over_prompt_length_and_decode_over_concurrency() -> None:
    ttft, decode = panels(GRID)
    assert lines(ttft) == {"smol-int4": [64, 256, 1024], "smol-int8": [64, 256, 1024]}
    assert lines(decode) == {"smol-int4": [1, 2, 4], "smol-int8": [1, 2, 4]}
    assert (ttft.y, ttft.y_is_log, decode.y, decode.y_is_log) == (
        *("median TTFT (s)", True),
        *("median decode speed (tokens/s)", False),
    )
    assert decode.note == "prompts of 256 tokens, answers of 16"


def test_a_point_is_the_median_with_the_range_of_the_runs() -> None:
    point = panels([cell(INT4, 100)])[0].lines[0].points[0]
    assert (point.low, point.middle, point.high) == pytest.approx((0.9, 1.0, 1.2))


def test_with_one_concurrency_decode_is_drawn_over_prompt_length() -> None:
    assert [panel.x for panel in panels(LENGTHS)] == ["prompt length (tokens)"] * 2


def test_pairs_cached_prefixes_and_failures_are_not_drawn() -> None:
    cached = record(run(), kind=Kind.GRID, prefix_tokens=50)
    assert panels([pair_record(run(), run()), cached, record(failed="Broken: no memory")]) == ()


def test_two_lines_of_one_deployment_are_told_apart_by_what_differs() -> None:
    other = deployment(engine_version="b2", fingerprint="of b2")
    assert list(lines(panels([cell(INT4), cell(other)])[0])) == [
        "smol-int4, int4 Q4_1, llamacpp b1",
        "smol-int4, int4 Q4_1, llamacpp b2",
    ]


def test_the_svg_is_the_same_each_time_and_holds_labels_with_units() -> None:
    first, second = draw(GRID, Picture.SVG), draw(GRID, Picture.SVG)
    assert first == second
    text = [element.text for element in ElementTree.fromstring(first).iter() if element.text]
    for label in ("prompt length (tokens)", "median TTFT (s)", "median decode speed (tokens/s)", "smol-int8", "1024"):
        assert label in text


def test_the_svg_follows_a_dark_page() -> None:
    svg = draw(GRID, Picture.SVG).decode()
    assert "@media (prefers-color-scheme: dark)" in svg
    for colour in re.findall(r'\[style\*="(?:fill|stroke): (#\w+)"\]', svg):
        assert f": {colour}" in svg.replace(f'[style*="fill: {colour}"]', "").replace(
            f'[style*="stroke: {colour}"]', ""
        )


def test_a_png_is_a_png() -> None:
    assert draw(LENGTHS, Picture.PNG).startswith(b"\x89PNG\r\n")


def test_an_axis_has_two_labels_at_least_where_all_points_are_nearly_equal() -> None:
    (first, *_) = draw([cell(INT4)], Picture.SVG).decode().split("median TTFT (s)")
    assert {"0.5", "1"} <= set(re.findall(r">([0-9.]+)</text>", first))


def test_a_single_point_can_be_drawn() -> None:
    assert draw([cell(INT4)], Picture.SVG)


def test_nothing_to_draw_is_an_error() -> None:
    with pytest.raises(NothingToDraw):
        draw([record(failed="Broken: no memory")], Picture.SVG)


def test_without_matplotlib_the_way_to_get_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra) as caught:
        draw(GRID, Picture.SVG)
    assert "paceline[plots]" in caught.value.fix
