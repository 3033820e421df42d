"""The figure that a run aims for: the comparison that ends it, and the direction of improvement."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mpidl.errors import UsageError, nearest, quoted
from mpidl.metrics import METRICS

#: The splits that are evaluated; with a validation split, the test split is evaluated only after training.
SPLITS = ("validation", "test")
COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}

_FORM = re.compile(r"\s*([A-Za-z]\w*)\s*(<=|>=|<|>)\s*(\S+)\s*")


@dataclass(frozen=True)
class Target:
    """A comparison of a figure with a number, such as ``validation_loss < 0.1``.

    Attributes
    ----------
    figure : str
        The name of a figure, after "validation_" or "test_" if a split is given.
    comparison : {"<", "<=", ">", ">="}
    """

    figure: str
    comparison: str
    value: float

    def __str__(self) -> str:
        return f"{self.figure} {self.comparison} {self.value:g}"

    def reached(self, value: float) -> bool:
        """Return whether a value of the figure fulfils the comparison; NaN never does."""
        return bool(COMPARISONS[self.comparison](value, self.value))

    @property
    def lower(self) -> bool:
        """Whether lower values are better."""
        return self.comparison in ("<", "<=")


def parse(text: str, names: Sequence[str]) -> Target:
    """Read a target, given the figures of an evaluation: "loss", "accuracy" and those of ``run.metrics``.

    Raises
    ------
    UsageError
        The text is not a comparison, or its figure is unknown; the message begins with the key.
    """
    example = "expected a comparison such as 'validation_loss < 0.1' or 'accuracy >= 0.9'"
    found = _FORM.fullmatch(text)
    if found is None:
        raise UsageError(f"target: {quoted(text)}, {example}")
    figure, comparison, number = found.groups()
    split, _, name = figure.partition("_")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"target: {quoted(number)} is not a number, {example}")
    if figure in names:
        return Target(figure, comparison, value)
    known = [f"{each}_{name}" for each in (SPLITS if split not in SPLITS else (split,)) for name in names]
    if split in SPLITS and name in METRICS and figure not in known:
        raise UsageError(f"target: {figure}, but run.metrics has no {name!r}")
    if figure not in known:
        raise UsageError(f"target: unknown figure {quoted(figure)}{nearest(figure, known)}")
    return Target(figure, comparison, value)
