"""The interface of metrics, and their inputs: rows of outputs and targets, one per prediction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mpidl.errors import MpidlError, UsageError, raised


def on_host(values: Any) -> NDArray[Any]:
    """Return an array of NumPy, CuPy or PyTorch, or anything that NumPy can convert, as a NumPy array."""
    if hasattr(values, "detach"):
        tensor = values.detach().cpu()
        # NumPy knows no bfloat16.
        return np.asarray(tensor.float() if tensor.element_size() < 4 and tensor.is_floating_point() else tensor)
    return values.get() if hasattr(values, "get") and hasattr(values, "ndim") else np.asarray(values)


def rows(outputs: NDArray[Any], targets: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Return outputs and targets as rows.

    Parameters
    ----------
    outputs : array
        (n, ..., outputs), or (n, outputs, ...) as PyTorch's losses of class ids take it; (n,) for one output.
    targets : array
        Class ids, integers of the outputs' shape without its axis of outputs, where samples with ids below 0 are left
        out; or numbers of the outputs' shape.

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
        return _table(outputs), _table(targets)
    if targets.dtype.kind in "iu":
        if targets.shape == outputs.shape[:-1]:
            return _known(_table(outputs), targets.reshape(-1))
        if outputs.ndim > 1 and targets.shape == outputs.shape[:1] + outputs.shape[2:]:
            return _known(_table(np.moveaxis(outputs, 1, -1)), targets.reshape(-1))
    raise UsageError(
        f"run.metrics: targets {targets.shape} of {targets.dtype}, expected class ids or floats for outputs "
        f"{outputs.shape}"
    )


def _without_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without a last axis of size 1."""
    return shape[:-1] if len(shape) > 1 and shape[-1] == 1 else shape


def _table(values: NDArray[Any]) -> NDArray[np.float64]:
    return values.reshape(-1, values.shape[-1]).astype(np.float64)


def _known(outputs: NDArray[np.float64], labels: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    known = labels >= 0
    if not known.all():
        outputs, labels = outputs[known], labels[known]
    if labels.size and labels.max() >= outputs.shape[1]:
        raise UsageError(f"run.metrics: class id {labels.max()}, expected less than the {outputs.shape[1]} outputs")
    return outputs, labels.astype(np.int64)


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
    def sums(self, outputs: NDArray[Any], targets: NDArray[Any], weight: float) -> Vector:
        """Return the sums of a batch; those of several batches are added up.

        Parameters
        ----------
        outputs, targets : array
            In any of the forms of `mpidl.metrics.metric.rows`.
        weight : float
            Weight of the batch, by default its number of samples.

        Returns
        -------
        array (size,) of float64
        """

    @abstractmethod
    def value(self, sums: Vector) -> float:
        """Return the figure; NaN if it is undefined."""


class RowMetric(Metric):
    """A metric that sums over rows, one per prediction, which share the batch's weight equally."""

    def sums(self, outputs: NDArray[Any], targets: NDArray[Any], weight: float) -> Vector:
        table, targets = rows(outputs, targets)
        if not len(table):
            return np.zeros(self.size(table.shape[1]))
        return self._sums(table, targets) * (weight / len(table))

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

    def sums(self, outputs: NDArray[Any], targets: NDArray[Any], weight: float) -> Vector:
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
