"""A figure that a run is after: when it is reached, and when it is better than before."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mpidl.errors import UsageError, nearest, quoted
from mpidl.metrics import METRICS

#: The splits that are evaluated; where there is the first, the second is only when the training is over.
SPLITS = ("validation", "test")
COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}

_FORM = re.compile(r"\s*([A-Za-z]\w*)\s*(<=|>=|<|>)\s*(\S+)\s*")


@dataclass(frozen=True)
class Target:
    """A comparison of a figure with a number, such as ``validation_loss < 0.1``.

    Attributes
    ----------
    figure : str
        "validation_" or "test_" and the figure's name.
    comparison : {"<", "<=", ">", ">="}
    value : float
    """

    figure: str
    comparison: str
    value: float

    def __str__(self) -> str:
        return f"{self.figure} {self.comparison} {self.value:g}"

    def reached(self, value: float) -> bool:
        """Return whether a figure of this value fulfils the comparison; NaN never does."""
        return bool(COMPARISONS[self.comparison](value, self.value))

    @property
    def lower(self) -> bool:
        """Whether lower values are better."""
        return self.comparison in ("<", "<=")


def parse(text: str, names: Sequence[str]) -> Target:
    """Read a target.

    Parameters
    ----------
    text : str
    names : sequence of str
        The figures of an evaluation: "loss", "accuracy" and those of ``run.metrics``.

    Raises
    ------
    UsageError
        It is no comparison, or of an unknown figure; the text begins with the name of the key.
    """
    example = "expected such as 'validation_loss < 0.1' or 'test_accuracy >= 0.9'"
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
    known = [f"{each}_{name}" for each in (SPLITS if split not in SPLITS else (split,)) for name in names]
    if split in SPLITS and name in METRICS and figure not in known:
        raise UsageError(f"target: {figure}, but run.metrics has no {name!r}")
    if figure not in known:
        raise UsageError(f"target: unknown figure {quoted(figure)}{nearest(figure, known)}")
    return Target(figure, comparison, value)
