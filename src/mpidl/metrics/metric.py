"""The interface of metrics, and how they and a loss read outputs and targets: as rows, one per prediction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mpidl.errors import MpidlError, UsageError, raised


class Scoring(Struct, frozen=True):
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


def on_host(values: Any) -> NDArray[Any]:
    """Return an array of NumPy, CuPy or PyTorch, or anything that NumPy can convert, as a NumPy array."""
    if hasattr(values, "detach"):
        tensor = values.detach().cpu()
        # NumPy knows no bfloat16.
        return np.asarray(tensor.float() if tensor.element_size() < 4 and tensor.is_floating_point() else tensor)
    return values.get() if hasattr(values, "get") and hasattr(values, "ndim") else np.asarray(values)


def are_labels(targets: NDArray[Any]) -> bool:
    """Tell whether the targets of rows are class ids."""
    return targets.ndim == 1


def one_hot(targets: NDArray[Any], outputs: int) -> NDArray[np.float64]:
    """Return targets as rows of numbers: class ids as one-hot rows."""
    if not are_labels(targets):
        return targets
    found = np.zeros((len(targets), outputs))
    found[np.arange(len(targets)), targets] = 1
    return found


Vector = NDArray[np.float64]

#: A sample has the labels whose targets exceed this.
LABELLED = 0.5


class Metric(ABC):
    """A figure computed from sums over the samples, so that parts of the data can be evaluated separately.

    Attributes
    ----------
    name : str
        The metric's name in ``run.metrics``.
    """

    name: ClassVar[str]

    @abstractmethod
    def size(self, outputs: int) -> int:
        """Return the number of sums for a model with this number of outputs.

        Raises
        ------
        UsageError
            The metric doesn't support that many outputs.
        """

    @abstractmethod
    def sums(self, outputs: NDArray[Any], targets: NDArray[Any], weight: float | None = None) -> Vector:
        """Return the sums of a batch.

        Parameters
        ----------
        outputs, targets : array
            In any of the forms of `mpidl.metrics.metric.Scoring.rows`.
        weight : float, optional
            Weight of the batch, shared by its predictions; by default each of them has weight 1.

        Returns
        -------
        array (size,) of float64
        """

    def merged(self, first: Vector, second: Vector) -> Vector:
        """Return the sums over two parts of the data, given those over each; zeros are those over nothing."""
        return first + second

    @abstractmethod
    def value(self, sums: Vector) -> float:
        """Return the figure; NaN if it is undefined, or can't be computed since an output is NaN."""

    def outputs(self, outputs: NDArray[Any], targets: NDArray[Any]) -> int:
        """Return the number of a model's outputs if the size depends on it; UsageError if they can't be read."""
        return 0


class RowMetric(Metric):
    """A metric that sums over rows, one per prediction, read as the loss reads them."""

    def __init__(self, scoring: Scoring = PLAIN) -> None:
        self._scoring = scoring

    def outputs(self, outputs: NDArray[Any], targets: NDArray[Any]) -> int:
        return int(self._scoring.rows(outputs, targets)[0].shape[1])

    def sums(self, outputs: NDArray[Any], targets: NDArray[Any], weight: float | None = None) -> Vector:
        table, targets = self._scoring.rows(outputs, targets)
        if not len(table):
            return np.zeros(self.size(table.shape[1]))
        sums = self._sums(table, targets)
        return sums if weight is None else self._weighed(sums, weight / len(table))

    def _labels(self, targets: NDArray[Any]) -> NDArray[Any]:
        """Return rows of targets as class ids where each prediction is of one class, else as they are."""
        rows = not are_labels(targets) and targets.shape[1] > 1
        return targets.argmax(axis=1) if rows and self._scoring.exclusive else targets

    def _weighed(self, sums: Vector, weight: float) -> Vector:
        """Return the sums of rows that have this weight each."""
        return sums * weight

    @abstractmethod
    def _sums(self, outputs: Vector, targets: NDArray[Any]) -> Vector:
        """Return the sums of rows, each with weight 1."""


class Mean(RowMetric):
    """A metric whose sums are the total over the rows and the number of rows."""

    def size(self, outputs: int) -> int:
        return 2

    def value(self, sums: Vector) -> float:
        return ratio(*sums)


def ratio(above: float, below: float) -> float:
    """Return the quotient, or NaN for a divisor of 0."""
    return float(above / below) if below else float("nan")


class OwnMetric(Metric):
    """A mean computed by a user's function, which returns a sum over the samples of a batch and its divisor.

    Parameters
    ----------
    key : str
        Its entry in ``run.metrics``, for errors.
    function : callable
        Called with the outputs and targets of a batch, as NumPy arrays; returns two numbers. The metric is the sum
        of the first over all batches, divided by that of the second.
    """

    def __init__(self, key: str, name: str, function: Callable[[NDArray[Any], NDArray[Any]], Any]) -> None:
        self.name = name  # type: ignore[misc]
        self._key, self._function = key, function

    def size(self, outputs: int) -> int:
        return 2

    def sums(self, outputs: NDArray[Any], targets: NDArray[Any], weight: float | None = None) -> Vector:
        """Return what the function returns for a batch; `weight` is ignored.

        Raises
        ------
        MpidlError
            The function raised an error, or returned something else.
        """
        try:
            found = self._function(outputs, targets)
        except MpidlError:
            raise
        except Exception as error:
            raise MpidlError(f"run.metrics: {self._key} {raised(error)}") from error
        try:
            sums = np.array(found, np.float64)
        except (TypeError, ValueError):
            sums = np.empty(0)
        if sums.shape != (2,):
            raise MpidlError(
                f"run.metrics: {self._key} returned {type(found).__name__} of shape {np.shape(sums)}, "
                "expected two numbers: a sum and its divisor"
            )
        return sums

    def value(self, sums: Vector) -> float:
        return ratio(*sums)
