"""Models: what a user's object must have to be trained, and the full interface that the package works with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from mpidl.data.batch import Batch
from mpidl.parameters.layout import Layout
from mpidl.parameters.ranges import Range
from mpidl.parameters.resharding import moves


class Model(Protocol):
    """A flat vector of parameters, and the loss and gradient of a batch.

    `Network` implements it, and so can an object of the user's own. Three more members are optional:

    ``layout : Layout``
        Names and shapes of the tensors in the vector, for checkpoints. Without it, the vector is one tensor named
        ``"parameters"``.
    ``statistics : sequence of Range``
        Ranges of the vector that hold statistics, such as running means. Rules subtract their gradient as it is.
    ``evaluate(batch) -> tuple[float, int | float] or tuple[float, int | float, array]``
        Sum of the losses over the batch's samples and number of correct predictions, for test loss and accuracy, and,
        for the metrics of ``run.metrics``, its outputs (n, ...). The number is NaN where it has no meaning
        (regression). A model that computes otherwise when it is tested than
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
            Contiguous, with the dtype and array package of `parameters`; may be a buffer that every call overwrites.
        """
        ...


class Module(Protocol):
    """A `torch.nn.Module`, which becomes a model by `mpidl.torch.TorchModel`."""

    def named_parameters(self) -> Any:
        """Yield the names and the parameters."""
        ...

    def state_dict(self) -> Any:
        """Return all tensors that are saved, by their names."""
        ...


class Evaluation(NamedTuple):
    """What a model makes of a batch that it isn't trained on.

    Attributes
    ----------
    loss : float
        Mean loss times what the batch counts, which is its number of samples if nothing else is said.
    correct : int or float
        Number of correct predictions; NaN where it has no meaning.
    outputs : array (n, ...), or None
        The outputs for the samples, in the model's array package, valid until the next call; None if unknown.
    """

    loss: float
    correct: int | float
    outputs: Any | None = None


class PlacedModel(Model, Protocol):
    """A model on the device where it computes."""

    def evaluate(self, batch: Batch) -> Evaluation:
        """Return loss, correct predictions and outputs of a batch."""
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
    own : bool
        Whether it is made of a user's own code, which may go wrong in any way; `rehearse` then finds out.
    movable : bool
        Whether `on` makes the model for another device. False for models that compute where they like.
    aliases : mapping of str to str
        Other names of tensors of the layout, such as those of tied weights: the name in the layout for each.
    by_stages : str
        The module of the package whose functions ``sections`` and ``section`` cut the model into stages; see
        `mpidl.partition.sections`. Empty for models that train whole, and for those that layers cut.
    """

    parameters: Any
    layout: Layout
    dtype: np.dtype[Any]
    statistics: Sequence[Range] = ()
    takes_integers: bool = False
    own: bool = False
    movable: bool = False
    aliases: Mapping[str, str] = MappingProxyType({})
    by_stages: str = ""

    def loss_and_gradient(self, batch: Batch) -> tuple[float, Any]:
        raise NotImplementedError

    def evaluate(self, batch: Batch) -> Evaluation:
        raise NotImplementedError

    def outputs(self, batch: Batch) -> Any:
        """Return what the model gives for the samples of a batch, whose targets may be None.

        Returns
        -------
        array (n, ...) or None
            In host memory; the next call may overwrite it. None if the model doesn't tell.
        """
        return self.evaluate(batch).outputs

    def copy_to_host(self) -> None:
        """Do nothing: the parameters lie on the host."""

    def constants(self) -> Mapping[str, np.ndarray]:
        """Return tensors of the model that training leaves alone, by name; checkpoints hold them."""
        return {}

    def load_constants(self, constants: Mapping[str, np.ndarray]) -> None:
        """Take the values of all `constants`, and copy them."""

    def buffers(self) -> Mapping[str, np.ndarray]:
        """Return what each replica counts by itself, by name, such as the batches seen; checkpoints hold it.

        Gradients change it, evaluation does not.
        """
        return {}

    def load_buffers(self, buffers: Mapping[str, np.ndarray]) -> None:
        """Take the values of all `buffers`, and copy them."""

    def freeze(self, names: Sequence[str]) -> None:
        """Note that the tensors of these names in the layout, and no others, are never changed.

        Their gradient doesn't matter, and need not be computed.
        """

    def on(self, xp: Any) -> CompleteModel:
        """Return the same model for the arrays of `xp`, NumPy or CuPy, without parameters yet; only if `movable`."""
        raise NotImplementedError

    def initial(self, whole: Range, layout: Layout | None = None) -> np.ndarray:
        """Return the initial values of the parameters [start, stop), shape (whole.size,), in host memory.

        Parameters
        ----------
        whole
            A range of the flat vector.
        layout
            Layout of that vector; the model's own by default.
        """
        if layout is None or layout == self.layout:
            return np.asarray(self.parameters[whole.start : whole.stop])
        values = np.empty(whole.size, self.dtype)
        for move in moves(self.layout, Range(0, self.layout.size), layout, whole):
            move.copy(self.parameters, values)
        return values

    def rehearse(self, batch: Batch) -> None:
        """Compute the loss and the gradient of a batch, and evaluate it, if that may go wrong; change no buffers.

        Raises
        ------
        UsageError
            It does.
        """

    def finish(self) -> None:
        """Leave the user's own object as it is to be when training is over; the vector has the trained values."""

    def check_data(self, input_shape: Sequence[int] | None, classes: int | None) -> None:
        """Raise UsageError if the model takes other inputs, or tells apart another number of classes than the data has.

        None, for a shape that is unknown and for data without classes, fits any.
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
