"""What follows from a run's evaluations: which is the best, which checkpoint has it, when to stop, and lower rates."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite
from typing import Any, NamedTuple

import msgspec

from mpidl.job.goal import Goal
from mpidl.storage.position import Best


class _Found(NamedTuple):
    value: float
    epoch: float


class Monitor:
    """Follows the figure of a `Goal` through the evaluations of a run.

    A checkpoint is of what was evaluated, or of a little later: it is ordered when an evaluation is better than all
    before, and the next one to be ordered is it.

    `epoch` is the number of epochs trained before. `best` is the best checkpoint that is on disk.
    """

    def __init__(self, goal: Goal, epoch: float = 0.0, best: Best | None = None) -> None:
        self._goal, self.best = goal, best
        worst = _Found(inf if goal.lower else -inf, epoch)
        self._top = worst if best is None else _Found(best.value, best.epoch)
        self._unsaved: _Found | None = None
        self._ordered: _Found | None = None

    def evaluated(self, value: float, epoch: float) -> None:
        """Compare an evaluation after `epoch` epochs with those before."""
        if self._goal.better(value, self._top.value):
            self._top = _Found(value, epoch)
            if self._goal.keeps_best:
                self._unsaved = self._top

    def state(self) -> dict[str, Any]:
        """Return the state for another monitor of the same goal to resume from."""
        return {"top": self._top, "unsaved": self._unsaved, "ordered": self._ordered, "best": self.best}

    def load(self, state: Mapping[str, Any]) -> None:
        """Resume from the `state` of another, which may have been encoded."""
        self._top = msgspec.convert(state["top"], _Found)
        self._unsaved, self._ordered = msgspec.convert((state["unsaved"], state["ordered"]), tuple[_Found | None, ...])
        self.best = msgspec.convert(state["best"], Best | None)

    @property
    def waits(self) -> bool:
        """Whether a checkpoint is to be ordered, for an evaluation that was better than all before."""
        return self._unsaved is not None

    def ordered(self) -> None:
        """Note that a checkpoint has been ordered; one that is being written is given up."""
        if self._unsaved is not None:
            self._ordered, self._unsaved = self._unsaved, None

    def saved(self, step: int) -> Best | None:
        """Note that the checkpoint that was ordered last is on disk; return the best one if that is it."""
        if self._ordered is None:
            return None
        self.best = Best(step, self._goal.figure, *self._ordered)
        self._ordered = None
        return self.best

    def exhausted(self, epoch: float) -> str | None:
        """Return why the run ends after `epoch` epochs for want of better evaluations; None if it doesn't."""
        patience = self._goal.patience
        if patience is None or epoch - self._top.epoch < patience:
            return None
        figure, top = self._goal.figure.replace("_", " "), self._top.value
        found = f"has not improved on {top:.4g}" if isfinite(top) else "has been NaN or infinite"
        return f"the {figure} {found} for {patience} epoch{'s' if patience > 1 else ''}"


class Plateau:
    """Counts how often rates have been reduced: whenever a figure has not improved for more than `patience` epochs.

    `state` is that of an earlier one, to resume from; `epoch` the number of epochs trained before.

    Attributes
    ----------
    reductions : int
    """

    def __init__(self, goal: Goal, patience: int, epoch: float = 0.0, state: Mapping[str, Any] | None = None) -> None:
        self._goal, self._patience = goal, patience
        self.load({"reductions": 0, "best": None, "since": epoch} | dict(state or {}))

    def load(self, state: Mapping[str, Any]) -> None:
        """Resume from the `state` of another."""
        self.reductions: int = state["reductions"]
        self._best: float | None = state["best"]
        self._since: float = state["since"]

    def evaluated(self, value: float, epoch: float) -> bool:
        """Take the figure of an evaluation after `epoch` epochs, and return whether to reduce the rates once more."""
        if isfinite(value) and (self._best is None or self._goal.better(value, self._best)):
            self._best, self._since = value, epoch
        if epoch - self._since <= self._patience:
            return False
        self.reductions, self._since = self.reductions + 1, epoch
        return True

    def state(self) -> dict[str, Any]:
        """Return the state for a resumed run."""
        return {"reductions": self.reductions, "best": self._best, "since": self._since}
