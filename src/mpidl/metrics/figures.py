"""All figures of an evaluation, and the one that a run aims for."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpidl.errors import MpidlError, UsageError, nearest, quoted
from mpidl.metrics import METRICS
from mpidl.metrics.metric import Metric, on_host, ratio

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
        """Return whether a value of the figure fulfils the comparison; NaN and infinity never do."""
        return math.isfinite(value) and bool(COMPARISONS[self.comparison](value, self.value))

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


def known(values: Mapping[str, float]) -> dict[str, float | None]:
    """Return figures with None in place of NaN, which marks those without meaning, except in losses."""
    losses = {f"{split}_loss" for split in SPLITS}
    return {name: None if isnan(value) and name not in losses else value for name, value in values.items()}


def named(figures: Figures, sums: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
    """Return the figures of evaluations by their names, such as "test_loss", given the sums over each split."""
    return {f"{split}_{name}": value for split, of in sums.items() for name, value in figures.values(of).items()}


#: Sums of loss and accuracy.
OWN = 4


class Figures:
    """The figures of an evaluation, and the sums they are computed from.

    The sums over a part of the data are a vector: the divisor of the loss and the loss, the number of predictions and
    that of correct ones, the terms of the loss, and those of each metric.

    Parameters
    ----------
    outputs : int
        Number of outputs of the model; 0 where it is not known yet, or not needed.
    terms : sequence of str
        Names of the terms of the loss; UsageError if another figure has one of them.

    Attributes
    ----------
    names : tuple of str
        Names of the figures: "loss", "accuracy" and those of the terms and of the metrics.
    metrics : tuple of Metric
    size : int
        Number of sums.
    """

    def __init__(self, metrics: Sequence[Metric] = (), outputs: int = 0, terms: Sequence[str] = ()) -> None:
        self.metrics, self._own = tuple(metrics), OWN + len(terms)
        self.names = ("loss", "accuracy", *terms, *(metric.name for metric in metrics))
        if taken := [name for name in terms if self.names.count(name) > 1]:
            raise UsageError(f"model.loss: a term has the name {taken[0]}, which is that of another figure")
        self._places = np.cumsum([self._own, *(metric.size(outputs) for metric in metrics)]).tolist()
        self.size: int = self._places[-1]

    def outputs(self, outputs: Any, targets: Any) -> int:
        """Return the number of a model's outputs, given those of some samples and their targets; 0 without metrics.

        Raises
        ------
        UsageError
            The model returns no outputs, or the metrics can't read them.
        """
        if not self.metrics:
            return 0
        if outputs is None:
            names = ", ".join(metric.name for metric in self.metrics)
            raise UsageError(
                f"run.metrics: {names}: evaluate(batch) of the model returns no outputs, expected a third value"
            )
        outputs, targets = on_host(outputs), on_host(targets)
        return max(metric.outputs(outputs, targets) for metric in self.metrics)

    def sums(
        self, own: Sequence[float], outputs: Any, targets: Any, weight: float | None = None
    ) -> NDArray[np.float64]:
        """Return the sums of a batch.

        Parameters
        ----------
        own : sequence of float
            The sums of loss and accuracy, and of the terms of the loss; the number of correct predictions is NaN where
            it has no meaning.
        outputs, targets : array
            In any of the forms of `mpidl.metrics.metric.Scoring.rows`; ignored without metrics.
        weight : float, optional
            A weight of the batch's own.

        Returns
        -------
        array (size,) of float64

        Raises
        ------
        MpidlError
            The loss has another number of terms than it had.
        """
        if len(own) != self._own:
            found = f"{len(own) - OWN} terms, where it had {self._own - OWN}"
            raise MpidlError(f"model.loss: found {found}; expected the same ones for every batch")
        if not self.metrics:
            return np.array(own, np.float64)
        outputs, targets = on_host(outputs), on_host(targets)
        return np.concatenate([own, *(metric.sums(outputs, targets, weight) for metric in self.metrics)])

    def merged(self, first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sums over two parts of the data, given those over each; zeros are those over nothing."""
        parts = zip(self.metrics, pairwise(self._places), strict=True)
        of_metrics = [metric.merged(first[i:j], second[i:j]) for metric, (i, j) in parts]
        return np.concatenate([first[: self._own] + second[: self._own], *of_metrics])

    def values(self, sums: NDArray[np.float64]) -> dict[str, float]:
        """Return the figures by their names, given the sums over all samples; NaN where one has no meaning."""
        weight, loss, counted, correct = sums[:OWN]
        parts = (sums[start:stop] for start, stop in pairwise(self._places))
        found = [ratio(loss, weight), ratio(correct, counted), *(ratio(term, weight) for term in sums[OWN : self._own])]
        found += [metric.value(part) for metric, part in zip(self.metrics, parts, strict=True)]
        return dict(zip(self.names, found, strict=True))
