"""The plots of a page, and the curves on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mpidl.page.course import Course
from mpidl.page.thinning import kept, part_of

#: Pixels of the width of a plot, and the fewest for which a curve of many has points.
PIXELS, FEWEST = 700, 100
#: Curves that have points for every pixel; more have fewer, so that the page stays small.
CURVES = 24
#: Stretches of a run over which rates are computed.
STRETCHES = 300
#: Splits of the data that are evaluated.
SPLITS = ("validation", "test")


class Curve(NamedTuple):
    """A curve of one run.

    Attributes
    ----------
    run : int
        The run, by its place on the page.
    name : str
        What is drawn.
    style : int
        The place of that name among those that plots have.
    axes : mapping of str to np.ndarray
        What it is drawn over.
    values : np.ndarray
        NaN between two attempts of the run.
    """

    run: int
    name: str
    style: int
    axes: Mapping[str, np.ndarray]
    values: np.ndarray


class Plot(NamedTuple):
    """A plot: its title, the unit of its values, and its curves."""

    title: str
    unit: str
    curves: Sequence[Curve]


class _Wanted(NamedTuple):
    """A curve that a plot has if a run has its figure: of bytes, the growth per second; and a factor of its values."""

    name: str
    column: str
    factor: float = 1.0


#: Plots of what workers and servers do: titles, units and curves, behind those of the model.
PLOTS = [
    ("Learning rate", "", [_Wanted("servers", "server_rate"), _Wanted("workers", "worker_rate")]),
    ("Norm of the gradient", "", [_Wanted("gradient norm", "gradient_norm")]),
    ("Step length", "", [_Wanted("step", "iteration.step")]),
    ("Evaluations per iteration", "", [_Wanted("evaluations", "iteration.evaluations")]),
    ("Speed", "samples/s", [_Wanted("speed", "samples_per_second")]),
    ("Load", "% of time", [_Wanted("servers busy", "server_load", 100), _Wanted("workers waiting", "waiting", 100)]),
    ("Staleness so far", "updates", [_Wanted("mean", "staleness.mean"), _Wanted("99th percentile", "staleness.p99")]),
    ("Traffic", "MB/s", [_Wanted(kind, f"bytes_{kind}", 1e-6) for kind in ("pushed", "fetched", "moved")]),
]


def plots(courses: Sequence[Course]) -> list[Plot]:
    """Return the plots of runs; those without a curve are left out."""
    found = []
    wanted = [("Objective", "", [_Wanted("objective", "iteration.objective")]), *_of_metrics(courses), *PLOTS]
    number = sum(len(curves) for _, _, curves in wanted) * len(courses)
    pixels = max(FEWEST, min(PIXELS, PIXELS * CURVES // max(1, number)))
    for title, unit, curves in wanted:
        drawn = [
            Curve(run, curve.name, style, *points(course, *_values(course, curve), pixels))
            for run, course in enumerate(courses)
            for style, curve in enumerate(curves)
            if course.has(curve.column)
        ]
        drawn = [curve for curve in drawn if curve.values.size]
        # What has always been 0, such as the staleness of one worker, needs no plot.
        if any(np.nan_to_num(curve.values).any() for curve in drawn):
            found.append(Plot(title, unit, drawn))
    return found


def _of_metrics(courses: Sequence[Course]) -> Iterator[tuple[str, str, list[_Wanted]]]:
    """Yield the plots of the loss, and of the metrics and terms of the loss that the runs have."""
    columns = [name.partition("_") for course in courses for name in course.run.metrics]
    for name in dict.fromkeys(["loss", *(name for split, _, name in columns if split in SPLITS)]):
        curves = [_Wanted(split, f"{split}_{name}") for split in SPLITS]
        yield name.replace("_", " ").capitalize(), "", [_Wanted("training", f"train_{name}"), *curves]


def _values(course: Course, wanted: _Wanted) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of a curve, and which records have new ones: later ones repeat those of evaluations."""
    if wanted.column.startswith("bytes_"):
        return _rate(course, wanted)
    values, split = course.figure(wanted.column) * wanted.factor, wanted.column.partition("_")[0]
    return values, course.evaluated(split) if split in SPLITS else np.ones(len(values), bool)


def _rate(course: Course, wanted: _Wanted) -> tuple[np.ndarray, np.ndarray]:
    """Return the growth per second of a growing figure, in each of some stretches of the run, and their ends."""
    if not (course.has("time") and course.figure(wanted.column).any()):
        return np.array([]), np.array([], bool)
    time = np.nan_to_num(course.figure("time"))
    stretch = np.column_stack([course.attempt, part_of(time, STRETCHES)])
    ends = np.append(np.any(np.diff(stretch, axis=0), axis=1), True)
    starts = np.append(0, np.flatnonzero(ends[:-1]) + 1)
    grown, passed = (np.add.reduceat(course.since(name), starts) for name in (wanted.column, "time"))
    # Nothing says at which time a later attempt began.
    passed[np.diff(course.attempt[ends], prepend=0) > 0] = 0.0
    found = np.full(len(time), np.nan)
    found[ends] = np.divide(grown * wanted.factor, passed, out=np.full(len(grown), np.nan), where=passed > 0)
    return found, ends


def points(
    course: Course, values: np.ndarray, new: np.ndarray, pixels: int
) -> tuple[Mapping[str, np.ndarray], np.ndarray]:
    """Return the points of a curve that a screen shows: their places on the axes, and their values.

    `new` says which records have a new value. Between two attempts of the run there is a gap.
    """
    if not course.axes:
        return {}, values[:0]
    places = np.flatnonzero(new)
    axes = {name: axis[places] for name, axis in course.axes.items()}
    # Epochs lie as samples do.
    shown = [axis for name, axis in axes.items() if name != "epoch" or "samples" not in axes]
    chosen = kept(shown, values[places], pixels)
    gaps = np.flatnonzero(np.diff(course.attempt[places][chosen])) + 1
    found = np.insert(values[places][chosen], gaps, np.nan)
    return {name: np.insert(axis[chosen], gaps, axis[chosen][gaps]) for name, axis in axes.items()}, found
