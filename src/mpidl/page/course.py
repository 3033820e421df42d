"""The course of a run: its records in order, and where they and its events lie on each axis."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from mpidl.history import Run

#: What curves are drawn over: the figure of a record, and the axis's label.
AXES = {"samples": "samples", "epoch": "epochs", "time": "training time", "iteration.number": "iterations"}


class Course:
    """The records of a run.

    Attributes
    ----------
    run : Run
    axes : mapping of str to np.ndarray
        The place of each record on the axes that the run has.
    attempt : np.ndarray
        The attempt that wrote each record: 0, and after each resumption one more. What an attempt did after its last
        checkpoint, the next one does again.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.axes: Mapping[str, np.ndarray] = {name: self.figure(name) for name in AXES if self.has(name)}
        begins = np.zeros(run.metrics.rows, bool)
        if self.has("unix_time"):
            times = [each.get("time") for each in run.event_list if each["event"] == "resume"]
            after = np.searchsorted(self.figure("unix_time"), [each for each in times if each is not None])
            begins[after[after < len(begins)]] = True
        self.attempt = np.cumsum(begins)

    def has(self, name: str) -> bool:
        """Return whether there is a number of this name in any record."""
        found = self.run.metrics.get(name)
        return found is not None and found.ndim == 1 and found.dtype.kind == "f" and bool(np.isfinite(found).any())

    def figure(self, name: str) -> np.ndarray:
        """Return a number of each record."""
        return self.run.metrics[name]

    def last(self, name: str) -> float | None:
        """Return the last of the records' numbers of this name; None if there is none."""
        if not self.has(name):
            return None
        found = self.figure(name)
        return float(found[np.flatnonzero(np.isfinite(found))[-1]])

    def evaluated(self, split: str) -> np.ndarray:
        """Return whether each record is the first with its figures of a split of the data; later ones repeat them."""
        new = np.zeros(self.run.metrics.rows, bool)
        new[:1] = True
        for name in self.run.metrics:
            if name.startswith(f"{split}_") and self.has(name):
                new[1:] |= np.diff(self.figure(name)) != 0  # also if one of them is NaN
        return new

    def since(self, name: str) -> np.ndarray:
        """Return by how much a growing number has grown since the record before, or since the attempt began."""
        found = np.nan_to_num(self.figure(name))
        before = np.append(0.0, found[:-1])
        before[np.diff(self.attempt, prepend=-1) > 0] = 0.0
        grown: np.ndarray = np.maximum(found - before, 0.0)
        return grown

    @cached_property
    def _clock(self) -> np.ndarray | None:
        """The time of each record in seconds since the epoch, with that of the run's first fetch before them."""
        if not (self.has("unix_time") and self.has("time")) or not np.isfinite(self.figure("unix_time")).all():
            return None
        clock = np.maximum.accumulate(self.figure("unix_time"))
        return np.append(clock[0] - self.figure("time")[0], clock)

    def place(self, axis: str, times: np.ndarray, virtual: np.ndarray) -> np.ndarray:
        """Return where events lie on an axis; NaN where that is unknown.

        Parameters
        ----------
        axis : str
        times : np.ndarray
            When they happened, in seconds since the epoch.
        virtual : np.ndarray
            When they happened in seconds of training, where that is known.
        """
        values = np.append(0.0, self.axes[axis])
        found = np.full(len(times), np.nan)
        if self._clock is not None:
            found = np.interp(times, self._clock, values)
        known = np.isfinite(virtual)
        if known.any() and "time" in self.axes:
            found[known] = np.interp(virtual[known], np.append(0.0, self.axes["time"]), values)
        return found
