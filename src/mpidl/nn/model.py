"""Models: what a user's object must have to be trained, and the full interface that the package works with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from mpidl.data.batch import Batch
from mpidl.errors import UsageError
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
        The number is NaN where it has no meaning (regression). Without it, the test loss is that of
        `loss_and_gradient`, and there is no accuracy.

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
    """A model on the host with all that the package asks of one. `adapt` makes it of any `Model`.

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
    movable : bool
        Whether `on` makes the model for another device. False for models that compute where they like.
    """

    parameters: Any
    layout: Layout
    dtype: np.dtype[Any]
    statistics: Sequence[Range] = ()
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

    def check_classes(self, classes: int | None) -> None:
        """Raise UsageError if the model can't tell so many classes apart; None if the data has no classes."""

    def accuracy_name(self, several_labels: bool) -> str:
        """Return what the share of correct samples is called; `several_labels` if targets are rows of floats."""
        return "accuracy"

    def activation_bytes(self, samples: int) -> int | None:
        """Return the bytes that a batch of so many samples needs besides the vectors; None if unknown."""
        return None

    def summaries(self) -> list[LayerSummary] | None:
        """Return what a plan says about each layer; None if unknown, otherwise `activation_bytes` is known too."""
        return None


def adapt(model: Model) -> CompleteModel:
    """Return `model` with the full interface; itself if it has that already.

    Raises
    ------
    UsageError
        It lacks a member of `Model`.
    """
    return model if isinstance(model, CompleteModel) else _AdaptedModel(model)


class _AdaptedModel(CompleteModel):
    """An object of the user's own with the members that it lacks."""

    def __init__(self, model: Model) -> None:
        for member in ("parameters", "loss_and_gradient"):
            if not hasattr(model, member):
                raise UsageError(f"model: {type(model).__name__} has no {member}, expected a mpidl.nn.Model")
        self._model = model
        self.dtype = np.dtype(model.parameters.dtype)
        layout: Layout | None = getattr(model, "layout", None)
        self.layout = Layout([("parameters", model.parameters.shape)]) if layout is None else layout
        self.statistics = getattr(model, "statistics", ())
        # The object's own methods, so that a step costs nothing more.
        self.loss_and_gradient = model.loss_and_gradient  # type: ignore[method-assign]
        if (evaluate := getattr(model, "evaluate", None)) is not None:
            self.evaluate = evaluate  # type: ignore[method-assign]

    @property
    def parameters(self) -> Any:
        """See `Model.parameters`."""
        return self._model.parameters

    @parameters.setter
    def parameters(self, vector: Any) -> None:
        self._model.parameters = vector

    def evaluate(self, batch: Batch) -> tuple[float, int | float]:
        """See `PlacedModel.evaluate`: correctness is unknown."""
        return float(self._model.loss_and_gradient(batch)[0]) * len(batch.inputs), float("nan")
