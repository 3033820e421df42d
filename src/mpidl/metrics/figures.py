"""All figures of an evaluation: loss, accuracy and the metrics of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isnan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpidl.errors import UsageError
from mpidl.metrics.metric import Metric, ratio
from mpidl.metrics.rows import on_host, rows
from mpidl.metrics.target import SPLITS


def known(values: Mapping[str, float]) -> dict[str, float | None]:
    """Return figures with None in place of NaN, which marks those without meaning, except in losses."""
    losses = {f"{split}_loss" for split in SPLITS}
    return {name: None if isnan(value) and name not in losses else value for name, value in values.items()}


def named(figures: Figures, sums: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
    """Return the figures of evaluations by their names, such as "test_loss", given the sums over each split."""
    return {f"{split}_{name}": value for split, of in sums.items() for name, value in figures.values(of).items()}


class Figures:
    """The figures of an evaluation, and the sums they are computed from.

    The sums over a part of the data are a vector: weight, loss, correct predictions, and those of each metric.

    Parameters
    ----------
    outputs : int
        Number of outputs of the model; 0 where it is not known yet, or not needed.

    Attributes
    ----------
    names : tuple of str
        Names of the figures: "loss", "accuracy" and those of the metrics.
    metrics : tuple of Metric
    size : int
        Number of sums.
    """

    def __init__(self, metrics: Sequence[Metric] = (), outputs: int = 0) -> None:
        self.metrics = tuple(metrics)
        self.names = ("loss", "accuracy", *(metric.name for metric in metrics))
        self._places = np.cumsum([3, *(metric.size(outputs) for metric in metrics)]).tolist()
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
        table, _ = rows(on_host(outputs), on_host(targets))
        return int(table.shape[1])

    def sums(self, weight: float, loss: float, correct: float, outputs: Any, targets: Any) -> NDArray[np.float64]:
        """Return the sums of a batch.

        Parameters
        ----------
        weight : float
            Weight of the batch.
        loss, correct : float
            Sums over the batch; `correct` is NaN where correctness has no meaning.
        outputs, targets : array
            In any of the forms of `mpidl.metrics.rows.rows`; ignored without metrics.

        Returns
        -------
        array (size,) of float64
        """
        own = np.array([weight, loss, correct])
        if not self.metrics:
            return own
        outputs, targets = on_host(outputs), on_host(targets)
        return np.concatenate([own, *(metric.sums(outputs, targets, weight) for metric in self.metrics)])

    def values(self, sums: NDArray[np.float64]) -> dict[str, float]:
        """Return the figures by their names, given the sums over all samples; NaN where one has no meaning."""
        weight, loss, correct = sums[:3]
        parts = (sums[start:stop] for start, stop in pairwise(self._places))
        found = [ratio(loss, weight), ratio(correct, weight)]
        found += [metric.value(part) for metric, part in zip(self.metrics, parts, strict=True)]
        return dict(zip(self.names, found, strict=True))
