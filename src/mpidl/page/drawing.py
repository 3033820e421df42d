"""Plots drawn by Bokeh, with ranges that are zoomed together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from bokeh import models
from bokeh.plotting import figure

from mpidl.page.course import AXES, RunCourse
from mpidl.page.curves import Curve, Plot
from mpidl.page.facts import LANES, Marks, is_virtual
from mpidl.page.timeline import OF_KINDS, PIXELS, SECONDS, Excerpt

#: Colours that people of any colour vision can tell apart (M. Okabe and K. Ito), as page.css names and defines them.
COLOURS = ("blue", "vermillion", "green", "purple", "orange", "sky", "grey")
#: Strokes of a run's curves on a plot of several runs, in order.
STROKES = ("solid", "dashed", "dotted", "dotdash")
#: Colours of the marks of events.
OF_LANES = dict.fromkeys(LANES, "grey") | {
    "death": "vermillion", "recovery": "green", "stop": "orange", "resume": "blue", "lost": "purple",
    "dropped push": "purple", "backup": "sky",
}  # fmt: skip
#: Lanes whose events are lines across all plots.
ACROSS = ("death", "recovery", "stop", "resume")
#: The style of what no legend hides.
ALWAYS = -1
#: Pixels of the height of a plot, of a lane of events and of a rank in a timeline, and of the axis below these.
HEIGHT, LANE, ROW, BELOW = 240, 24, 22, 50
#: Plots whose axis can be logarithmic.
LOSSES = ("Loss", "Objective")
#: Curves of so few points have a mark at each.
FEW = 60
#: Part of the axis that is left free beyond the last record.
MARGIN = 0.015
NUMBER = "return mpidl.number(value)"
#: All tools fit beside each other, and lie on the plot.
TOOLBAR = ".bk-tool-overflow { display: none } :host(.bk-inner) { background-color: transparent }"
#: A tooltip that breaks long lines.
TIP = "<div style='max-width:320px;white-space:normal;overflow-wrap:anywhere;color:#222'>{}</div>"


class Axis(NamedTuple):
    """An axis: its label, the factor from figures of records to what is drawn, and what is shown of it at first."""

    label: str
    factor: float
    range: tuple[float, float]


class Drawn(NamedTuple):
    """A plot of the page.

    Attributes
    ----------
    title, unit : str
    figure : object
        The figure of Bokeh.
    keys : sequence of (str, str, str, int)
        The name, colour, stroke and style of each kind of curve, for the plot's legend.
    wide : bool
        Whether it is as wide as the page.
    """

    title: str
    unit: str
    figure: Any
    keys: Sequence[tuple[str, str, str, int]] = ()
    wide: bool = False


def axes(courses: Sequence[RunCourse]) -> dict[str, Axis]:
    """Return the axes that any of the runs has."""
    virtual = any(is_virtual(course.run) for course in courses)
    found = {}
    for name, label in AXES.items():
        ends = [float(np.nanmax(course.axes[name])) for course in courses if name in course.axes]
        if not ends:
            continue
        end, factor = max(ends), 1.0
        if name == "time":
            unit, factor = ("h", 1 / 3600) if end >= 2 * 3600 else ("min", 1 / 60) if end >= 300 else ("s", 1.0)
            label = f"{'virtual time' if virtual else label} ({unit})"
        shown = end * factor if end > 0 else 1.0
        found[name] = Axis(label, factor, (-MARGIN * shown, shown * (1 + MARGIN)))
    return found


class Canvas:
    """Draws the plots of a page.

    Parameters
    ----------
    names : sequence of str
        The names of the runs.
    axes : mapping of str to Axis
    first : str
        The axis that is shown first.
    marks : Marks
        Events, some of which are lines across all plots.
    """

    def __init__(self, names: Sequence[str], axes: Mapping[str, Axis], first: str, marks: Marks) -> None:
        self._names, self._axes, self._first = names, axes, first
        # One for all plots: who zooms one, zooms all.
        start, end = axes[first].range
        self._range = models.Range1d(start=start, end=end)
        self._number = models.CustomJSHover(code=NUMBER)
        self._marks = {
            lane: self._source(places, {"y": [lane] * len(texts), "text": texts})
            for lane, (places, texts) in marks.items()
        }

    def plot(self, plot: Plot) -> Drawn:
        """Draw curves over each other: of one run in different colours, of several in the colour of each run."""
        drawn = self._figure(HEIGHT, tags=["loss"] if plot.title in LOSSES else [])
        styles, alone = sorted({curve.style for curve in plot.curves}), len(self._names) == 1
        keys: dict[int, tuple[str, str, str, int]] = {}
        for curve in plot.curves:
            style, run = curve.style, self._names[curve.run]
            colour = COLOURS[(style if alone else curve.run) % len(COLOURS)]
            stroke = STROKES[0 if alone else styles.index(style) % len(STROKES)]
            keys.setdefault(style, (curve.name, colour if alone else "grey", stroke, style))
            name = curve.name if alone else f"{run}, {curve.name}" if len(styles) > 1 else run
            self._draw(drawn, curve, name, [colour, curve.run, style], stroke)
        places = ", ".join(
            f"@{{{name}}}{{custom}} {axis.label.partition('(')[2].rstrip(')') or axis.label}"
            for name, axis in self._axes.items()
        )
        tip = f"$name: <b>@y{{custom}}</b> {plot.unit}<br><span style='color:#666'>{places}</span>"
        lines = [each for each in drawn.renderers if isinstance(each.glyph, models.Line)]
        formatters = dict.fromkeys(["@y", *(f"@{{{name}}}" for name in self._axes)], self._number)
        _hover(drawn, lines, tip, formatters=formatters, mode="vline", line_policy="nearest")
        return Drawn(plot.title, plot.unit, drawn, [keys[style] for style in styles])

    def _draw(self, drawn: Any, curve: Curve, name: str, tags: list[Any], stroke: str) -> None:
        source = self._source(curve.axes, {"y": _small(curve.values)})
        drawn.line(self._first, "y", source=source, width=1.6, dash=stroke, name=name, tags=tags)
        if len(curve.values) <= (FEW if len(self._names) == 1 else 1):
            drawn.scatter(self._first, "y", source=source, size=7 if len(curve.values) == 1 else 4, tags=tags)

    def staleness(self, found: Mapping[str, np.ndarray]) -> Drawn:
        """Draw a histogram of staleness for each stretch of a run: the darker, the more pushes."""
        drawn = self._figure(HEIGHT, y_range=models.Range1d(start=-0.5, end=float(found["high"].max())))
        # The root, so that a hundredth of the pushes can be seen beside all of them.
        data = {**found, "share": 100 * found["share"], "alpha": np.sqrt(found["share"])}
        for name, axis in self._axes.items():
            data |= {key: found[key] * axis.factor for key in (f"begin {name}", f"end {name}")}
        cells = drawn.quad(
            left=f"begin {self._first}", right=f"end {self._first}", bottom="low", top="high", line_color=None,
            source=models.ColumnDataSource({key: _small(each) for key, each in data.items()}), alpha="alpha",
            tags=["blue", 0, 0],
        )  # fmt: skip
        drawn.yaxis.ticker = models.BasicTicker(min_interval=1)
        width = int(found["high"][0] - found["low"][0])
        fewer = "" if width == 1 else f" and {width - 1} fewer"
        # The high end of a class lies half an update above its last staleness, and is rounded to it.
        formatters = {"@high": models.CustomJSHover(code="return String(Math.floor(value))"), "@share": self._number}
        tip = f"@high{{custom}}{fewer} updates: @share{{custom}} % of the pushes"
        _hover(drawn, [cells], tip, formatters=formatters)
        return Drawn("Staleness of pushes", "updates", drawn)

    def events(self) -> Drawn:
        """Draw events in lanes by their kinds."""
        lanes = list(self._marks)
        drawn = self._figure(LANE * len(lanes) + BELOW, y_range=models.FactorRange(factors=lanes[::-1]))
        marks = [
            drawn.scatter(
                self._first, "y", source=source, size=9, alpha=0.75, marker="diamond", tags=[OF_LANES[lane], 0, 0]
            )
            for lane, source in self._marks.items()
        ]
        _hover(drawn, marks, "@text", point_policy="snap_to_data")
        drawn.ygrid.visible = False
        return Drawn("Over the run", "", drawn, wide=True)

    def _figure(self, height: int, **options: Any) -> Any:
        drawn = _figure(height, self._range, toolbar_location="above", **options)
        wheel = models.WheelZoomTool(dimensions="width", modifiers={"ctrl": True})
        zoom = models.BoxZoomTool()
        drawn.add_tools(zoom, models.PanTool(), wheel, models.ResetTool(), models.SaveTool())
        drawn.toolbar.active_drag, drawn.toolbar.active_scroll = zoom, wheel
        drawn.toolbar.logo, drawn.toolbar.autohide, drawn.toolbar_inner = None, True, True
        drawn.toolbar.stylesheets = [TOOLBAR]
        drawn.xaxis.axis_label = self._axes[self._first].label
        for axis in drawn.xaxis if isinstance(drawn.y_range, models.FactorRange) else drawn.axis:
            axis.formatter = models.CustomJSTickFormatter(code="return mpidl.number(tick)")
        for lane in (each for each in ACROSS if each in self._marks):
            drawn.vspan(
                x=self._first, source=self._marks[lane], line_dash="dashed", line_alpha=0.7, level="underlay",
                tags=[OF_LANES[lane], 0, ALWAYS],
            )  # fmt: skip
        return drawn

    def _source(self, axes: Mapping[str, np.ndarray], columns: Mapping[str, np.ndarray | list[str]]) -> Any:
        """Return the source of what is drawn at places on the axes; an axis that a run lacks has no place for it."""
        rows = len(next(iter(columns.values())))
        places = {
            name: _small(axes[name] * axis.factor) if name in axes else np.full(rows, np.nan, np.float32)
            for name, axis in self._axes.items()
        }
        return models.ColumnDataSource({**places, **columns})


def timeline(part: Excerpt) -> Drawn:
    """Draw a part of a timeline: a row for each rank, a box for each span."""
    rows = len(part.ranks)
    across = models.Range1d(start=part.begin, end=part.begin + SECONDS)
    down = models.Range1d(start=rows - 0.5, end=-0.5)
    drawn = _figure(ROW * rows + BELOW, across, y_range=down, toolbar_location=None, tags=["timeline"])
    drawn.grid.visible = False
    drawn.xaxis.formatter = models.PrintfTickFormatter(format="%.2f s")
    drawn.yaxis.ticker = models.FixedTicker(ticks=list(range(rows)))
    drawn.yaxis.major_label_overrides = {row: models.PlainText(text=label) for row, label in enumerate(part.ranks)}
    boxes = []
    for kind, (name, colour) in enumerate(OF_KINDS.items()):
        found = [spans[spans[:, 2] == kind] for spans in part.ranks.values()]
        row, spans = np.repeat(np.arange(rows), list(map(len, found))), np.concatenate(found)
        start, length = part.begin + spans[:, 0], spans[:, 1]
        # The shortest are drawn, too.
        places = {"start": start, "end": start + np.maximum(length, 0.7 * SECONDS / PIXELS)}
        others = {"low": row + 0.39, "high": row - 0.39, "length": 1e3 * length}
        labels = {"rank": [list(part.ranks)[each] for each in row]}
        source = models.ColumnDataSource(places | {key: _small(each) for key, each in others.items()} | labels)
        boxes.append(
            drawn.quad(
                left="start", right="end", bottom="low", top="high", source=source, line_color=None, name=name,
                tags=[colour, 0, ALWAYS],
            )
        )  # fmt: skip
    _hover(drawn, boxes, "@rank: $name, @length{0.00} ms from @start{0.0000} s")
    return Drawn(part.title, "", drawn, wide=True)


def _figure(height: int, x_range: Any, **options: Any) -> Any:
    """Return an empty figure with the look of the page; its script gives it the colours."""
    drawn = figure(
        height=height, sizing_mode="stretch_width", x_range=x_range, tools="", min_border_right=12,
        background_fill_color=None, border_fill_color=None, outline_line_color=None, output_backend="canvas", **options,
    )  # fmt: skip
    for axis in drawn.axis:
        axis.axis_line_color = axis.minor_tick_line_color = None
        axis.major_tick_line_color, axis.axis_label_text_font_style = None, "normal"
        axis.major_label_text_font_size = axis.axis_label_text_font_size = "12px"
    drawn.grid.grid_line_color = "rgba(128, 128, 128, 0.25)"
    drawn.xgrid.visible = False
    return drawn


def _hover(drawn: Any, renderers: Sequence[Any], tip: str, **options: Any) -> None:
    """Show what lies under the mouse."""
    drawn.add_tools(models.HoverTool(renderers=list(renderers), tooltips=TIP.format(tip), **options))


@np.errstate(over="ignore")
def _small(values: np.ndarray) -> np.ndarray:
    """Return numbers in half the bytes: no screen shows more of their digits."""
    return np.asarray(values, np.float32)
