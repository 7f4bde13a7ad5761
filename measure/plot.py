"""A picture of records: TTFT over prompt length, decode speed over concurrency, one line for each deployment."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

from measure.extras import optional
from measure.plot_series import Line, Panel, panels
from measure.records import Record

INK, PAPER, FAINT = "#1f2328", "#fefefe", "#d0d7de"
_AT_NIGHT = {INK: "#e6edf3", PAPER: "#0d1117", FAINT: "#30363d"}
"""What the neutral colours become where a page is dark; the colours of lines are readable on both."""
LINE_COLOURS = ("#2f81f7", "#e0701a", "#1a9e6b", "#b04fd0", "#d64561", "#0e97ab", "#a07d00", "#7a7f87")
_MARKERS = "osD^vP*X"
_DASHES = ("-", "--", ":")

PANEL_INCHES = (5.4, 3.9)
_LEGEND_ROW_INCHES = 0.26
_PNG_DOTS = 160
_LEAST_LOG_RANGE = 5.0
"""So far from end to end a logarithmic axis reaches at least: two of its labels at 1, 2 and 5 are always there, and
what is nearly equal does not look far apart."""
_WIDEST_LOG_RANGE = 1000.0
"""Beyond this ratio of a log axis's ends only its powers of ten are labelled."""

_STYLE = {
    "svg.hashsalt": "paceline",
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 10.0,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.facecolor": PAPER,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 22.0,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
    "xtick.minor.size": 0.0,
    "ytick.minor.size": 0.0,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
}


class Picture(StrEnum):
    """The kinds of files."""

    SVG = "svg"
    PNG = "png"


class NothingToDraw(ValueError):
    """No record has a point for any panel."""


def draw(records: Iterable[Record], kind: Picture) -> bytes:
    """Return the picture; the same records give the same SVG. An SVG follows a dark page, a PNG is on white.

    Raises ``NothingToDraw``, and ``MissingExtra`` where matplotlib is not installed.
    """
    made = panels(records)
    if not made:
        raise NothingToDraw("none of the records has a run to draw")
    matplotlib = optional("matplotlib", extra="plots", purpose="a picture")
    figures = optional("matplotlib.figure", extra="plots", purpose="a picture")
    labels = list(dict.fromkeys(line.label for panel in made for line in panel.lines))
    columns = _legend_columns(labels, len(made))
    rows = -(-len(labels) // columns)
    width, height = PANEL_INCHES[0] * len(made), PANEL_INCHES[1] + _LEGEND_ROW_INCHES * rows
    with matplotlib.rc_context(_STYLE):
        figure = figures.Figure(figsize=(width, height), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1, wspace=0.06)
        handles: dict[str, Any] = {}
        for place, panel in enumerate(made, start=1):
            axes = figure.add_subplot(1, len(made), place)
            _draw_panel(axes, panel, labels, handles)
        figure.legend([handles[label] for label in labels], labels, loc="outside lower left", ncols=columns)
        data = io.BytesIO()
        if kind is Picture.SVG:
            figure.savefig(data, format="svg", metadata={"Date": None, "Creator": "Paceline", "Title": _title(made)})
            return _following_dark_pages(data.getvalue().decode()).encode()
        figure.savefig(data, format="png", dpi=_PNG_DOTS, metadata={"Title": _title(made)})
        return data.getvalue()


def _draw_panel(axes: Any, panel: Panel, labels: Sequence[str], handles: dict[str, Any]) -> None:
    for line in panel.lines:
        handles.setdefault(line.label, _draw_line(axes, line, labels.index(line.label)))
    axes.set_title(panel.title)
    axes.annotate(
        f"{panel.note}; shaded: lowest to highest run",
        (0, 1),
        xytext=(0, 7),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=9,
    )
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    points = [point for line in panel.lines for point in line.points]
    _log_axis(axes, "x", [*(point.x for point in points), *panel.ticks], panel.ticks)
    if panel.y_is_log:
        _log_axis(axes, "y", [value for point in points for value in (point.low, point.high)])
    else:
        axes.set_ylim(bottom=0.0, top=1.08 * max(point.high for point in points))


def _draw_line(axes: Any, line: Line, place: int) -> Any:
    colour, marker = LINE_COLOURS[place % len(LINE_COLOURS)], _MARKERS[place % len(_MARKERS)]
    dashes = _DASHES[place // len(LINE_COLOURS) % len(_DASHES)]
    x = [point.x for point in line.points]
    low, high = [point.low for point in line.points], [point.high for point in line.points]
    if len(x) > 1:
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    else:
        axes.vlines(x, low, high, color=colour, alpha=0.3, linewidth=5)
    middles = [point.middle for point in line.points]
    (handle,) = axes.plot(x, middles, dashes, color=colour, marker=marker, markersize=5, linewidth=1.8)
    return handle


def _log_axis(axes: Any, name: str, values: Sequence[float], ticks: Sequence[int] = ()) -> None:
    """A logarithmic axis with plain numbers: at ``ticks`` where they do not crowd, else at 1, 2 and 5."""
    ticker = optional("matplotlib.ticker", extra="plots", purpose="a picture")
    axis = getattr(axes, f"{name}axis")
    getattr(axes, f"set_{name}scale")("log")
    low, high = min(values), max(values)
    room = max((high / low) ** 0.06, (_LEAST_LOG_RANGE * low / high) ** 0.5)
    getattr(axes, f"set_{name}lim")(low / room, high * room)
    apart = _apart(ticks)
    if apart:
        axis.set_major_locator(ticker.FixedLocator(apart))
    else:
        steps = (1.0,) if high / low > _WIDEST_LOG_RANGE else (1.0, 2.0, 5.0)
        axis.set_major_locator(ticker.LogLocator(base=10.0, subs=steps))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(ticker.NullLocator())


def _apart(ticks: Sequence[int]) -> list[int]:
    """The ticks that have room for a label: each a quarter of a doubling at least after the one before."""
    kept: list[int] = []
    for tick in ticks:
        if not kept or tick >= kept[-1] * 1.19:
            kept.append(tick)
    return kept


def _legend_columns(labels: Sequence[str], panels_wide: int) -> int:
    """As many columns as the labels leave room for."""
    characters = 72 * panels_wide
    return max(1, min(len(labels), characters // (max(map(len, labels)) + 8)))


def _title(made: Sequence[Panel]) -> str:
    return "; ".join(f"{panel.title} over {panel.x}" for panel in made)


def _following_dark_pages(svg: str) -> str:
    """Add a style sheet that turns the neutral colours where the page is dark; viewers without it see the light one."""
    rules = "".join(
        f'[style*="{what}: {light}"]{{{what}:{dark} !important}}'
        for light, dark in _AT_NIGHT.items()
        for what in ("fill", "stroke")
    )
    sheet = f"<style>@media (prefers-color-scheme: dark){{{rules}}}</style>"
    head, defs, rest = svg.partition(" <defs>")
    return f"{head} {sheet}\n{defs}{rest}"
