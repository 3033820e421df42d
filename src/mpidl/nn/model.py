"""Models: what a user's object must have to be trained, and the full interface that the package works with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from mpidl.data.batch import Batch
from mpidl.parameters.layout import Layout
from mpidl.parameters.ranges import Range


class Model(Protocol):
    """A flat vector of parameters, and the loss and gradient of a batch.

    `Network` implements it, and so can an object of the user's own. Three more members are optional:

    ``layout : Layout``
        Names and shapes of the tensors in the vector, for checkpoints. Without it, the vector is one tensor named
        ``"parameters"``.
    ``statistics : sequence of Range``
        Ranges of the vector that hold statistics, such as running means. Rules subtract their gradient as it is.
    ``evaluate(batch) -> tuple[float, int | float]``
        Sum of the losses over the batch's samples and number of correct predictions, for test loss and accuracy.
        The number is NaN where it has no meaning (regression). A model that computes otherwise when it is tested than
        when it is trained (dropout) needs it. Without it, the test loss is that of `loss_and_gradient`, and there is
        no accuracy.

    Before the training begins, each worker calls both methods once, on the first batch, to check what they return.

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


class PlacedModel(Model, Protocol):
    """A model on the device where it computes."""

    def evaluate(self, batch: Batch) -> tuple[float, int | float]:
        """Return the sum of the losses over the samples, and the number of correct predictions or NaN."""
        ...

    def copy_to_host(self) -> None:
        """Copy the parameters into those of the model on the host that this one was made from."""
        ...


class LayerSummary(NamedTuple):
    """What a plan says about a layer.

    Attributes
    ----------
    name, type : str
    shape : tuple of int
        Shape of the outputs for one sample.
    parameters : int
        Number of parameters.
    operations : int
        Floating-point operations of the forward pass for one sample.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    parameters: int
    operations: int


class CompleteModel:
    """A model on the host with all that the package asks of one. `mpidl.nn.adapt` makes it of any `Model`.

    Subclasses set the attributes without a default and implement `Model` and `evaluate`.

    Attributes
    ----------
    parameters : array (size,)
        See `Model`.
    layout : Layout
        Names and shapes of the tensors in the vector.
    dtype : numpy.dtype
        Dtype of the parameters.
    statistics : sequence of Range
        Ranges of the vector that hold statistics; rules subtract their gradient as it is.
    takes_integers : bool
        Whether the model takes integer inputs as they are, such as ids; else it takes floats.
    movable : bool
        Whether `on` makes the model for another device. False for models that compute where they like.
    """

    parameters: Any
    layout: Layout
    dtype: np.dtype[Any]
    statistics: Sequence[Range] = ()
    takes_integers: bool = False
    movable: bool = False

    def loss_and_gradient(self, batch: Batch) -> tuple[float, Any]:
        """See `Model.loss_and_gradient`."""
        raise NotImplementedError

    def evaluate(self, batch: Batch) -> tuple[float, int | float]:
        """See `PlacedModel.evaluate`."""
        raise NotImplementedError

    def copy_to_host(self) -> None:
        """Do nothing: the parameters lie on the host."""

    def on(self, xp: Any) -> CompleteModel:
        """Return the same model for the arrays of `xp`, NumPy or CuPy, without parameters yet; only if `movable`."""
        raise NotImplementedError

    def initial(self, whole: Range) -> np.ndarray:
        """Return the initial values of the parameters [start, stop), shape (whole.size,), in host memory."""
        return np.asarray(self.parameters[whole.start : whole.stop])

    def rehearse(self, batch: Batch) -> None:
        """Compute the loss and the gradient of a batch, and evaluate it, if that may go wrong.

        Raises
        ------
        UsageError
            It does.
        """

    def check_data(self, input_shape: Sequence[int], classes: int | None) -> None:
        """Raise UsageError if the model takes other inputs, or tells apart another number of classes than the data has.

        None, for data without classes, fits any.
        """

    def accuracy_name(self, several_labels: bool) -> str:
        """Return what the share of correct samples is called; `several_labels` if targets are rows of floats."""
        return "accuracy"

    def activation_bytes(self, samples: int) -> int | None:
        """Return the bytes that a batch of so many samples needs besides the vectors; None if unknown."""
        return None

    def summaries(self) -> list[LayerSummary] | None:
        """Return what a plan says about each layer; None if unknown, otherwise `activation_bytes` is known too."""
        return None
