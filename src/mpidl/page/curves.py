"""The plots of a page, and the curves on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
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


#: The values of a curve, and the records that have new ones.
Values = tuple[np.ndarray, np.ndarray]


class _Wanted(NamedTuple):
    """A curve that a plot has if a run has its figures."""

    name: str
    values: Callable[[Course], Values | None]
    style: int


def plots(courses: Sequence[Course]) -> list[Plot]:
    """Return the plots of runs; those without a curve are left out."""
    found = []
    wanted = list(_plots(courses))
    number = sum(len(curves) for _, _, curves in wanted) * len(courses)
    pixels = max(FEWEST, min(PIXELS, PIXELS * CURVES // max(1, number)))
    for title, unit, curves in wanted:
        drawn = [
            Curve(run, curve.name, curve.style, *points(course, *values, pixels))
            for run, course in enumerate(courses)
            for curve in curves
            if (values := curve.values(course)) is not None
        ]
        drawn = [curve for curve in drawn if curve.values.size]
        # What has always been 0, such as the staleness of one worker, needs no plot.
        if any(np.nan_to_num(curve.values).any() for curve in drawn):
            found.append(Plot(title, unit, drawn))
    return found


def _plots(courses: Sequence[Course]) -> Iterator[tuple[str, str, Sequence[_Wanted]]]:
    """Yield the title, the unit and the curves of each plot that runs may have."""
    yield "Objective", "", [_figure("objective", "iteration.objective")]
    yield "Loss", "", [_figure("training", "train_loss"), *_evaluated("loss")]
    for name in _metrics(courses):
        yield name.replace("_", " ").capitalize(), "", _evaluated(name)
    yield "Learning rate", "", [_figure("servers", "server_rate"), _figure("workers", "worker_rate", 1)]
    yield "Norm of the gradient", "", [_figure("gradient norm", "gradient_norm")]
    yield "Step length", "", [_figure("step", "iteration.step")]
    yield "Evaluations per iteration", "", [_figure("evaluations", "iteration.evaluations")]
    yield "Speed", "samples/s", [_figure("speed", "samples_per_second")]
    load = [_figure("servers busy", "server_load", factor=100), _figure("workers waiting", "waiting", 1, 100)]
    yield "Load", "% of time", load
    staleness = [_figure("mean", "staleness.mean"), _figure("99th percentile", "staleness.p99", 1)]
    yield "Staleness so far", "updates", staleness
    kinds = enumerate(("pushed", "fetched", "moved"))
    yield "Traffic", "MB/s", [_Wanted(kind, _rate(f"bytes_{kind}", 1e-6), style) for style, kind in kinds]


def _metrics(courses: Iterable[Course]) -> list[str]:
    """Return the names of the runs' metrics and of the terms of their losses, the loss itself left out."""
    found = {
        name.removeprefix(f"{split}_"): None
        for course in courses
        for name in course.run.metrics
        for split in SPLITS
        if name.startswith(f"{split}_")
    }
    return [name for name in found if name != "loss"]


def _figure(name: str, column: str, style: int = 0, factor: float = 1.0) -> _Wanted:
    """Return the curve of a figure of all records."""

    def values(course: Course) -> Values | None:
        if not course.has(column):
            return None
        found = course.figure(column) * factor
        return found, np.ones(len(found), bool)

    return _Wanted(name, values, style)


def _evaluated(name: str) -> list[_Wanted]:
    """Return the curves of a figure of evaluations, which later records repeat."""

    def values(course: Course, split: str) -> Values | None:
        column = f"{split}_{name}"
        return (course.figure(column), course.evaluated(split)) if course.has(column) else None

    return [_Wanted(split, partial(values, split=split), style) for style, split in enumerate(SPLITS, 1)]


def _rate(column: str, factor: float) -> Callable[[Course], Values | None]:
    """Return a function to the growth per second of a growing figure, in each of some stretches of the run."""

    def values(course: Course) -> Values | None:
        if not (course.has(column) and course.has("time")) or not course.figure(column).any():
            return None
        time = np.nan_to_num(course.figure("time"))
        stretch = np.column_stack([course.attempt, part_of(time, STRETCHES)])
        ends = np.append(np.any(np.diff(stretch, axis=0), axis=1), True)
        grown, passed = (np.add.reduceat(course.since(name), _starts(ends)) for name in (column, "time"))
        # Nothing says at which time a later attempt began.
        passed[np.diff(course.attempt[ends], prepend=0) > 0] = 0.0
        found = np.full(len(time), np.nan)
        found[ends] = np.divide(grown * factor, passed, out=np.full(len(grown), np.nan), where=passed > 0)
        return found, ends

    return values


def _starts(ends: np.ndarray) -> np.ndarray:
    """Return where stretches begin, given which records end one."""
    return np.append(0, np.flatnonzero(ends[:-1]) + 1)


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
