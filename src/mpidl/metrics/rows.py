"""Outputs and targets of any model as rows: one per prediction, with one element per output."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpidl.errors import UsageError


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
