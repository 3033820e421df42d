"""The protocol of models: any object with a flat parameter vector can be trained."""

from __future__ import annotations

from typing import Any, Protocol

from mpidl.data.batch import Batch
from mpidl.parameters.layout import Layout


class Model(Protocol):
    """A flat vector of parameters, and the loss and gradient of a batch.

    `Network` implements it, and so can an object of the user's own. Two more members are optional:

    ``layout : Layout``
        Names and shapes of the tensors in the vector, for checkpoints. Without it, the vector is one tensor named
        ``"parameters"``.
    ``evaluate(batch) -> tuple[float, int | float]``
        Sum of the losses over the batch's samples and number of correct predictions, for test loss and accuracy.
        The number is NaN where it has no meaning (regression).

    Attributes
    ----------
    parameters : array (size,), float32 or float64
        Contiguous; holds the initial values. Engines write into it, and where memory is shared they replace it by
        another vector: compute with ``self.parameters`` each time, and keep no copy.

    Examples
    --------
    Least squares in float64:

    >>> import numpy as np
    >>> from mpidl.data.batch import Batch
    >>> class LeastSquares:
    ...     def __init__(self, inputs: int) -> None:
    ...         self.parameters = np.zeros(inputs)
    ...
    ...     def loss_and_gradient(self, batch: Batch) -> tuple[float, np.ndarray]:
    ...         error = batch.inputs @ self.parameters - batch.targets[:, 0]
    ...         return float(np.mean(error**2) / 2), batch.inputs.T @ error / len(error)
    >>> model = LeastSquares(2)
    >>> model.loss_and_gradient(Batch(np.eye(2), np.array([[2.0], [4.0]])))
    (5.0, array([-1., -2.]))
    """

    parameters: Any

    def loss_and_gradient(self, batch: Batch) -> tuple[float, Any]:
        """Return the mean loss over the batch and its gradient with respect to `parameters`.

        Returns
        -------
        loss : float
            Mean over the batch.
        gradient : array (size,)
            Has the dtype and array package of `parameters`; may be a buffer that every call overwrites.
        """
        ...


def layout_of(model: Model) -> Layout:
    """Return the model's layout; by default, that of a single tensor named ``"parameters"``."""
    layout: Layout | None = getattr(model, "layout", None)
    return Layout([("parameters", model.parameters.shape)]) if layout is None else layout
