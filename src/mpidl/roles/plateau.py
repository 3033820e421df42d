"""Rates that fall when evaluations no longer become better."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from mpidl.job.goal import Goal


class Plateau:
    """Counts how often rates have been reduced: whenever a figure has not improved for more than `patience` epochs.

    `state` is that of an earlier one, with which it goes on; `epoch` the number of epochs trained before.

    Attributes
    ----------
    reductions : int
    """

    def __init__(self, goal: Goal, patience: int, epoch: float = 0.0, state: Mapping[str, Any] | None = None) -> None:
        self._goal, self._patience = goal, patience
        self.load({"reductions": 0, "best": None, "since": epoch} | dict(state or {}))

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on with the `state` of another."""
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
        """Return what a resumed run goes on with."""
        return {"reductions": self.reductions, "best": self._best, "since": self._since}
