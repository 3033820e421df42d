"""How a loss reads outputs and targets, so that accuracy and metrics read them likewise: rows, one per prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpidl.errors import UsageError


@dataclass(frozen=True)
class Scoring:
    """How a loss reads outputs and targets.

    Attributes
    ----------
    accuracy : str
        Name of the share of correct predictions.
    exclusive : bool
        Whether a prediction is of one class even if targets are rows of numbers: that of the highest target.
    threshold : float
        Where predictions are of several labels, outputs above it predict theirs.
    axis : int, optional
        Axis of the classes in outputs for class ids; by default the last where the shapes allow it, else the second.
    ignored : tuple of int
        Class ids whose targets don't count in the loss; those below 0 never count.
    """

    accuracy: str = "accuracy"
    exclusive: bool = False
    threshold: float = 0.0
    axis: int | None = None
    ignored: tuple[int, ...] = ()

    def rows(self, outputs: NDArray[Any], targets: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """Return outputs and targets as rows, without those that don't count.

        Parameters
        ----------
        outputs : array
            (n, ..., outputs), or (n, outputs, ...) as PyTorch's losses of class ids take it; (n,) for one output.
        targets : array
            Class ids, integers of the outputs' shape without its axis of outputs; or numbers of the outputs' shape.

        Returns
        -------
        outputs : array (m, outputs) of float64
        targets : array (m,) of int64, class ids, or (m, outputs) of float64
            With one output, class ids are treated as numbers.

        Raises
        ------
        UsageError
            The shapes don't fit together, or a class id is not below the number of outputs.
        """
        if outputs.dtype.kind not in "biuf" or targets.dtype.kind not in "biuf":
            raise UsageError(f"run.metrics: outputs are {outputs.dtype}, targets {targets.dtype}, expected numbers")
        alone = outputs.ndim == 1 or outputs.shape[-1] == 1
        if alone and _without_last(outputs.shape) == _without_last(targets.shape):
            return outputs.reshape(-1, 1).astype(np.float64), targets.reshape(-1, 1).astype(np.float64)
        if outputs.shape == targets.shape:
            return _table(outputs, self.axis), _table(targets, self.axis)
        axis = class_axis(self.axis, outputs.shape, targets.shape) if targets.dtype.kind in "iu" else None
        if axis is None:
            expected = f"expected class ids or floats for outputs {outputs.shape}"
            raise UsageError(f"run.metrics: targets {targets.shape} of {targets.dtype}, {expected}")
        table, counted = _table(outputs, axis), self.counted(labels := targets.reshape(-1))
        if not counted.all():
            table, labels = table[counted], labels[counted]
        if labels.size and labels.max() >= table.shape[1]:
            raise UsageError(f"run.metrics: class id {labels.max()}, expected less than the {table.shape[1]} outputs")
        return table, labels.astype(np.int64)

    def counted(self, labels: Any) -> Any:
        """Return which class ids, in an array or a tensor, count."""
        counted = labels >= 0
        for each in self.ignored:
            counted &= labels != each
        return counted


#: Of a loss that is not known.
PLAIN = Scoring()


def without_nan(outputs: Any, axis: int = 1) -> Any:
    """Return which predictions, in an array or a tensor with `axis` for their outputs, have no NaN among these.

    The others never count as correct, whatever `argmax` says of them.
    """
    return (outputs == outputs).all(axis)


def class_axis(known: int | None, outputs: tuple[int, ...], targets: tuple[int, ...]) -> int | None:
    """Return the axis of the classes in outputs of this shape for class ids of that one; None if there is none."""
    for axis in (len(outputs) - 1, 1) if known is None else (known,):
        if len(outputs) > axis and tuple(outputs[:axis]) + tuple(outputs[axis + 1 :]) == tuple(targets):
            return axis
    return None


def _without_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without a last axis of size 1."""
    return shape[:-1] if len(shape) > 1 and shape[-1] == 1 else shape


def _table(values: NDArray[Any], axis: int | None) -> NDArray[np.float64]:
    """Return values as rows along an axis, by default the last."""
    moved = values if axis is None else np.moveaxis(values, axis, -1)
    return moved.reshape(-1, moved.shape[-1]).astype(np.float64)
