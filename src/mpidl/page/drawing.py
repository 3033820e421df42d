"""Plots drawn by Bokeh, with ranges that are zoomed together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpidl.extras import require
from mpidl.page.course import AXES, Course
from mpidl.page.curves import Curve, Plot
from mpidl.page.facts import is_virtual
from mpidl.page.histogram import Cells
from mpidl.page.incidents import LANES, Marks

#: Colours that people of any colour vision can tell apart (M. Okabe and K. Ito), by the names that page.css gives them;
#: there, each has a form for dark pages.
COLOURS = {
    "blue": "#0072b2", "vermillion": "#d55e00", "green": "#009e73", "purple": "#cc79a7", "orange": "#e69f00",
    "sky": "#56b4e9", "grey": "#777777",
}  # fmt: skip
NAMES = list(COLOURS)
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
#: Pixels of the height of a plot, and of a lane of events with that of the axis below them.
HEIGHT, LANE, BELOW = 240, 24, 50
#: Plots whose axis can be logarithmic.
LOSSES = ("Loss", "Objective")
#: Curves of so few points have a mark at each.
FEW = 60
#: Part of the axis that is left free beyond the last record.
MARGIN = 0.015
NUMBER = "return mpidl.number(value)"
#: All tools fit beside each other, and lie on the plot.
TOOLBAR = ".bk-tool-overflow { display: none } :host(.bk-inner) { background-color: transparent }"


class Axis(NamedTuple):
    """An axis: its label, the factor from figures of records to what is drawn, and the last of these."""

    label: str
    factor: float
    end: float

    @property
    def range(self) -> tuple[float, float]:
        """What is shown of it at first."""
        return -MARGIN * self.end, self.end * (1 + MARGIN)


class Drawn(NamedTuple):
    """A plot of the page.

    Attributes
    ----------
    title, unit : str
    figure : object
        The figure of Bokeh.
    keys : list of (str, str, str, int)
        The name, colour, stroke and style of each kind of curve, for the plot's legend.
    wide : bool
        Whether it is as wide as the page.
    """

    title: str
    unit: str
    figure: Any
    keys: list[tuple[str, str, str, int]]
    wide: bool = False


def axes(courses: Sequence[Course]) -> dict[str, Axis]:
    """Return the axes that any of the runs has."""
    virtual = any(is_virtual(course.run) for course in courses)
    found = {}
    for name, label in AXES.items():
        ends = [float(np.nanmax(course.axes[name])) for course in courses if name in course.axes]
        if not ends:
            continue
        end, factor = max(ends), 1.0
        if name == "time":
            unit, factor = _unit(end)
            label = f"{'virtual time' if virtual else label} ({unit})"
        found[name] = Axis(label, factor, end * factor if end > 0 else 1.0)
    return found


def _unit(seconds: float) -> tuple[str, float]:
    if seconds >= 2 * 3600:
        return "h", 1 / 3600
    return ("min", 1 / 60) if seconds >= 300 else ("s", 1.0)


class Canvas:
    """Draws the plots of a page.

    Parameters
    ----------
    names : sequence of str
        The names of the runs.
    axes : mapping of str to Axis
    first : str
        The axis that is shown first.
    """

    def __init__(self, names: Sequence[str], axes: Mapping[str, Axis], first: str) -> None:
        self._names, self._axes, self._first = names, axes, first
        self._models = require("bokeh.models", "report")
        self._plotting = require("bokeh.plotting", "report")
        # One for all plots: who zooms one, zooms all.
        self._range = self._models.Range1d(*axes[first].range)
        self._across: list[tuple[Any, str]] = []

    def mark(self, marks: Sequence[Marks]) -> None:
        """Draw these events as lines across the plots to come."""
        across = [each for each in marks if each.lane in ACROSS]
        self._across = [(self._source(each.axes, {"text": each.texts}), OF_LANES[each.lane]) for each in across]

    def plot(self, plot: Plot) -> Drawn:
        """Draw curves over each other: of one run in different colours, of several in the colour of each run."""
        figure = self._figure(HEIGHT)
        styles, alone = sorted({curve.style for curve in plot.curves}), len(self._names) == 1
        keys: dict[int, tuple[str, str, str, int]] = {}
        for curve in plot.curves:
            style, run = curve.style, self._names[curve.run]
            colour = NAMES[(style if alone else curve.run) % len(NAMES)]
            stroke = STROKES[0 if alone else styles.index(style) % len(STROKES)]
            keys.setdefault(style, (curve.name, colour if alone else "grey", stroke, style))
            name = curve.name if alone else f"{run}, {curve.name}" if len(styles) > 1 else run
            self._draw(figure, curve, name, [colour, curve.run, style], stroke)
        self._hover(figure, plot.unit)
        figure.tags = ["loss"] if plot.title in LOSSES else []
        return Drawn(plot.title, plot.unit, figure, [keys[style] for style in styles])

    def _draw(self, figure: Any, curve: Curve, name: str, tags: list[Any], stroke: str) -> None:
        source, colour = self._source(curve.axes, {"y": _small(curve.values)}), COLOURS[tags[0]]
        drawn = [figure.line(self._first, "y", source=source, color=colour, width=1.6, dash=stroke, name=name)]
        if len(curve.values) <= (FEW if len(self._names) == 1 else 1):
            drawn.append(
                figure.scatter(self._first, "y", source=source, color=colour, size=7 if len(curve.values) == 1 else 4)
            )
        for each in drawn:
            each.tags = tags

    def staleness(self, cells: Cells) -> Drawn:
        """Draw a histogram of staleness for each stretch of a run: the darker, the more pushes."""
        figure = self._figure(HEIGHT)
        # The root, so that a hundredth of the pushes can be seen beside all of them.
        share = {"share": 100 * cells.share, "alpha": np.sqrt(cells.share)}
        data = {"low": cells.low, "high": cells.high, **share}
        for name, axis in self._axes.items():
            data[f"begin {name}"], data[f"end {name}"] = cells.begin[name] * axis.factor, cells.end[name] * axis.factor
        source = self._models.ColumnDataSource({key: _small(each) for key, each in data.items()})
        renderer = figure.quad(
            left=f"begin {self._first}", right=f"end {self._first}", bottom="low", top="high", source=source,
            color=COLOURS["blue"], line_color=None, alpha="alpha",
        )  # fmt: skip
        renderer.tags = ["blue", 0, 0]
        figure.y_range = self._models.Range1d(-0.5, float(cells.high.max()))
        figure.yaxis.ticker = self._models.BasicTicker(min_interval=1)
        width = int(cells.high[0] - cells.low[0])
        fewer = "" if width == 1 else f" and {width - 1} fewer"
        # The high end of a class lies half an update above its last staleness, and is rounded to it.
        formatters = {"@high": self._formatter("return String(Math.floor(value))"), "@share": self._formatter(NUMBER)}
        tip = f"<div>@high{{custom}}{fewer} updates: @share{{custom}} % of the pushes</div>"
        figure.add_tools(self._models.HoverTool(renderers=[renderer], tooltips=tip, formatters=formatters))
        return Drawn("Staleness of pushes", "updates", figure, [])

    def events(self, marks: Sequence[Marks]) -> Drawn:
        """Draw events in lanes by their kinds."""
        lanes = [each.lane for each in marks]
        figure = self._figure(LANE * len(lanes) + BELOW, y_range=self._models.FactorRange(factors=lanes[::-1]))
        drawn = []
        for each in marks:
            colour = OF_LANES[each.lane]
            columns = {"y": [each.lane] * len(each.texts), "text": each.texts}
            renderer = figure.scatter(
                self._first, "y", source=self._source(each.axes, columns), size=9, color=COLOURS[colour],
                alpha=0.75, marker="diamond",
            )  # fmt: skip
            renderer.tags = [colour, 0, 0]
            drawn.append(renderer)
        tip = "<div style='max-width:320px;white-space:normal;overflow-wrap:anywhere'>@text</div>"
        figure.add_tools(self._models.HoverTool(renderers=drawn, tooltips=tip, point_policy="snap_to_data"))
        figure.ygrid.visible = False
        return Drawn("Over the run", "", figure, [], wide=True)

    def _figure(self, height: int, **options: Any) -> Any:
        models = self._models
        figure = self._plotting.figure(
            height=height, sizing_mode="stretch_width", x_range=self._range, tools="", toolbar_location="above",
            min_border_right=12, background_fill_color=None, border_fill_color=None, outline_line_color=None,
            output_backend="canvas", **options,
        )  # fmt: skip
        wheel = models.WheelZoomTool(dimensions="width", modifiers={"ctrl": True})
        zoom = models.BoxZoomTool()
        figure.add_tools(zoom, models.PanTool(), wheel, models.ResetTool(), models.SaveTool())
        figure.toolbar.active_drag, figure.toolbar.active_scroll = zoom, wheel
        figure.toolbar.logo, figure.toolbar.autohide, figure.toolbar_inner = None, True, True
        figure.toolbar.stylesheets = [TOOLBAR]
        figure.xaxis.axis_label = self._axes[self._first].label
        for axis in figure.axis:
            axis.axis_line_color = axis.minor_tick_line_color = None
            axis.major_tick_line_color, axis.axis_label_text_font_style = None, "normal"
            axis.major_label_text_font_size = axis.axis_label_text_font_size = "12px"
        for axis in [*figure.xaxis, *(() if "y_range" in options else figure.yaxis)]:
            axis.formatter = models.CustomJSTickFormatter(code="return mpidl.number(tick)")
        figure.grid.grid_line_color = "rgba(128, 128, 128, 0.25)"
        figure.xgrid.visible = False
        for source, colour in self._across:
            renderer = figure.vspan(
                x=self._first, source=source, color=COLOURS[colour], line_dash="dashed", line_alpha=0.7,
                level="underlay",
            )  # fmt: skip
            renderer.tags = [colour, 0, ALWAYS]
        return figure

    def _hover(self, figure: Any, unit: str) -> None:
        """Show the values of a plot's lines at the mouse's place on the axis."""
        lines = [each for each in figure.renderers if isinstance(each.glyph, self._models.Line)]
        places = ", ".join(f"@{{{name}}}{{custom}} {_short(axis.label)}" for name, axis in self._axes.items())
        tip = (
            "<div style='max-width:320px;white-space:normal;overflow-wrap:anywhere;color:#222'>$name: "
            f"<b>@y{{custom}}</b> {unit}<br><span style='color:#666'>{places}</span></div>"
        )
        formatters = {f"@{{{name}}}": self._formatter(NUMBER) for name in self._axes}
        formatters["@y"] = self._formatter(NUMBER)
        tool = self._models.HoverTool(
            renderers=lines, tooltips=tip, formatters=formatters, mode="vline", line_policy="nearest"
        )
        figure.add_tools(tool)

    def _formatter(self, code: str) -> Any:
        return self._models.CustomJSHover(code=code)

    def _source(self, axes: Mapping[str, np.ndarray], columns: Mapping[str, np.ndarray | list[str]]) -> Any:
        """Return the source of what is drawn at places on the axes; an axis that a run lacks has no place for it."""
        rows = len(next(iter(columns.values())))
        places = {
            name: _small(axes[name] * axis.factor) if name in axes else np.full(rows, np.nan, np.float32)
            for name, axis in self._axes.items()
        }
        return self._models.ColumnDataSource({**places, **columns})


def _short(label: str) -> str:
    """Return the unit of a number beside it: "s" of "training time (s)"."""
    return label.partition("(")[2].rstrip(")") or label


@np.errstate(over="ignore")
def _small(values: np.ndarray) -> np.ndarray:
    """Return numbers in half the bytes: no screen shows more of their digits."""
    return np.asarray(values, np.float32)
