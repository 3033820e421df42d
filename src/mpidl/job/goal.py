"""The goal of a run: its metrics, its target, and the figure by which evaluations are compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite

from mpidl.config import RunSection
from mpidl.errors import UsageError
from mpidl.functions import find
from mpidl.metrics import METRICS, Metric
from mpidl.metrics.figures import Target, parse
from mpidl.metrics.metric import OwnMetric, Scoring


@dataclass(frozen=True)
class Goal:
    """What evaluations decide in a run.

    Evaluations are compared by `figure`, such as "validation_loss"; `lower` says whether lower values are better.
    Reaching the target ends the run, as do `patience` epochs without a better figure. `keeps_best` says whether the
    checkpoint of the best figure is kept.
    """

    figure: str = "test_loss"
    lower: bool = True
    target: Target | None = None
    patience: int | None = None
    keeps_best: bool = False

    @classmethod
    def of(cls, run: RunSection, validation: bool) -> Goal:
        """Return the goal of a run; `validation` if there are validation data.

        Raise UsageError if the target is a figure of data that are not evaluated during the run.
        """
        split, other = ("validation", "test") if validation else ("test", "validation")
        target = None if run.target is None else parse(run.target, run.figures)
        if target is not None and target.figure in run.figures:
            target = replace(target, figure=f"{split}_{target.figure}")
        if target is not None and not target.figure.startswith(split):
            why = (
                "evaluations before the end are on the validation data"
                if validation
                else "there are no validation data"
            )
            raise UsageError(
                f"run.target: {target.figure}, but {why}, expected {split}_{target.figure.removeprefix(f'{other}_')}"
                f"{'' if validation else ', or data.validation'}"
            )
        figure, lower = (f"{split}_loss", True) if target is None else (target.figure, target.lower)
        return cls(figure, lower, target, run.patience, keeps_best=validation or run.patience is not None)

    def better(self, value: float, than: float) -> bool:
        """Return whether a value of the figure is better than another; NaN and infinity never are."""
        return isfinite(value) and (value < than if self.lower else value > than)


def metrics(run: RunSection, scoring: Scoring) -> list[Metric]:
    """Return the metrics of a run beside loss and accuracy; its loss reads outputs and targets as `scoring` says.

    Raise UsageError if a function of the user's own can't be found.
    """
    found: list[Metric] = []
    for place, name in enumerate(run.metrics):
        if name in METRICS:
            found.append(METRICS[name](scoring))
        elif ":" in name:
            own = find(f"run.metrics[{place}]", name, "(outputs, targets)")
            found.append(OwnMetric(name, name.partition(":")[2], own))
    return found
