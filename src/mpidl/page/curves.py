"""The plots of a page: curves of the records, and the histograms of staleness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mpidl.page.course import RunCourse, kept, part_of

#: Pixels of the width of a plot, and the fewest for which a curve of many has points.
PIXELS, FEWEST = 700, 100
#: Curves that have points for every pixel; more have fewer, so that the page stays small.
CURVES = 24
#: Number of intervals over which rates are averaged, number with a histogram, and maximum classes of a histogram.
STRETCHES, HISTOGRAMS, CLASSES = 300, 80, 32
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


#: A plot that a page has if a run has its figures: title, unit, and name, figure and factor of each curve. Of bytes, it
#: is the growth per second.
Wanted = tuple[str, str, Sequence[tuple[str, str, float]]]

#: Plots of what workers and servers do, behind those of the model.
PLOTS: list[Wanted] = [
    ("Learning rate", "", [("servers", "server_rate", 1), ("workers", "worker_rate", 1)]),
    ("Norm of the gradient", "", [("gradient norm", "gradient_norm", 1)]),
    ("Step length", "", [("step", "iteration.step", 1)]),
    ("Evaluations per iteration", "", [("evaluations", "iteration.evaluations", 1)]),
    ("Speed", "samples/s", [("speed", "samples_per_second", 1)]),
    ("Load", "% of time", [("servers busy", "server_load", 100), ("workers waiting", "waiting", 100)]),
    ("Staleness so far", "updates", [("mean", "staleness.mean", 1), ("99th percentile", "staleness.p99", 1)]),
    ("Traffic", "MB/s", [(kind, f"bytes_{kind}", 1e-6) for kind in ("pushed", "fetched", "moved")]),
]


def plots(courses: Sequence[RunCourse]) -> list[Plot]:
    """Return the plots of runs; those without a curve are left out."""
    found = []
    wanted = [("Objective", "", [("objective", "iteration.objective", 1)]), *_of_metrics(courses), *PLOTS]
    number = sum(len(curves) for _, _, curves in wanted) * len(courses)
    pixels = max(FEWEST, min(PIXELS, PIXELS * CURVES // max(1, number)))
    for title, unit, curves in wanted:
        drawn = [
            Curve(run, name, style, *points(course, *_values(course, column, factor), pixels))
            for run, course in enumerate(courses)
            for style, (name, column, factor) in enumerate(curves)
            if course.has(column)
        ]
        drawn = [curve for curve in drawn if curve.values.size]
        # What has always been 0, such as the staleness of one worker, needs no plot.
        if any(np.nan_to_num(curve.values).any() for curve in drawn):
            found.append(Plot(title, unit, drawn))
    return found


def _of_metrics(courses: Sequence[RunCourse]) -> Iterator[Wanted]:
    """Yield the plots of the loss, and of the metrics and terms of the loss that the runs have."""
    columns = [name.partition("_") for course in courses for name in course.metrics]
    for name in dict.fromkeys(["loss", *(name for split, _, name in columns if split in SPLITS)]):
        splits = {"training": "train"} | {split: split for split in SPLITS}
        title = name.replace("_", " ").capitalize()
        yield title, "", [(split, f"{prefix}_{name}", 1) for split, prefix in splits.items()]


def _values(course: RunCourse, column: str, factor: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of a curve, and which records have new ones: later ones repeat those of evaluations."""
    if column.startswith("bytes_"):
        return _rate(course, column, factor)
    values, split = course.metrics[column] * factor, column.partition("_")[0]
    return values, course.evaluated(split) if split in SPLITS else np.ones(len(values), bool)


def _rate(course: RunCourse, column: str, factor: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the growth per second of a growing figure, in each of some stretches of the run, and their ends."""
    if not (course.has("time") and course.metrics[column].any()):
        return np.array([]), np.array([], bool)
    time = np.nan_to_num(course.metrics["time"])
    ends = _ends(course, time, STRETCHES)
    starts = np.append(0, np.flatnonzero(ends[:-1]) + 1)
    grown, passed = (np.add.reduceat(course.since(name), starts) for name in (column, "time"))
    # Nothing says at which time a later attempt began.
    passed[np.diff(course.attempt[ends], prepend=0) > 0] = 0.0
    found = np.full(len(time), np.nan)
    found[ends] = np.divide(grown * factor, passed, out=np.full(len(grown), np.nan), where=passed > 0)
    return found, ends


def _ends(course: RunCourse, axis: np.ndarray, parts: int) -> np.ndarray:
    """Return which records end one of the stretches of a run: equal parts of the axis, each of one attempt."""
    stretch = np.column_stack([course.attempt, part_of(axis, parts)])
    return np.append(np.any(np.diff(stretch, axis=0), axis=1), True)


def points(
    course: RunCourse, values: np.ndarray, new: np.ndarray, pixels: int
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


def histograms(course: RunCourse) -> dict[str, np.ndarray] | None:
    """Return the histograms of the staleness that pushes had, in stretches of a run; None if it has none.

    They are columns of cells, one for each class of staleness with any pushes: "low" and "high", between which the
    staleness lies, "share", the fraction of the stretch's pushes, and for each axis, such as "time", where the stretch
    lies on it: "begin time" and "end time".
    """
    counts = course.metrics.get("staleness_histogram")
    if counts is None or counts.ndim != 2 or not counts.any() or not course.axes:
        return None
    ends = np.flatnonzero(_ends(course, np.nan_to_num(next(iter(course.axes.values()))), HISTOGRAMS))
    begins = np.append(-1, ends[:-1])
    # The counts are those since the attempt began.
    anew = np.diff(course.attempt[ends], prepend=-1) > 0
    new = np.maximum(counts[ends] - np.where(anew[:, None], 0.0, counts[begins]), 0.0)
    width = -(-counts.shape[1] // CLASSES)
    classes = np.add.reduceat(new, np.arange(0, counts.shape[1], width), axis=1)
    rows, columns = np.nonzero(classes)
    found = {
        "low": columns * width - 0.5,
        "high": (columns + 1) * width - 0.5,
        "share": classes[rows, columns] / classes.sum(axis=1)[rows],
    }
    for name, values in course.axes.items():
        # The first record of an attempt ends a stretch that began at a checkpoint, of which there may be no record.
        before = np.where(anew, values[np.minimum(begins + 1, ends)], values[begins])
        before[0] = 0.0
        found |= {f"begin {name}": before[rows], f"end {name}": values[ends][rows]}
    return found
