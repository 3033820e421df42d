"""Models: what a user's object must have to be trained, and the full interface of the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from mpidl.data.batch import Batch
from mpidl.errors import MpidlError
from mpidl.metrics.metric import PLAIN, Scoring
from mpidl.parameters.layout import Layout, moves
from mpidl.parameters.ranges import Range
from mpidl.tables.lookups import WithTables


class Model(Protocol):
    """A flat vector of parameters, and the loss and gradient of a batch.

    `Network` implements it, and so can a user's own object. Three more members are optional:

    ``layout : Layout``
        Names and shapes of the tensors in the vector, for checkpoints. Without it, the vector is one tensor named
        ``"parameters"``.
    ``statistics : sequence of Range``
        Ranges of the vector that hold statistics, such as running means. Rules subtract their gradient as it is.
    ``evaluate(batch) -> tuple[float, int | float] or tuple[float, int | float, array]``
        Sum of the losses over the batch's samples and number of correct predictions, for test loss and accuracy, and
        the outputs (n, ...), for the metrics of ``run.metrics``. The number is NaN where it has no meaning
        (regression). Models with dropout and the like need it. By default, the test loss is that of
        `loss_and_gradient`, and there is no accuracy.

    Before training, each worker calls both methods on the first batch, and `evaluate` on two parts of it, to check
    their results.

    Attributes
    ----------
    parameters : array (size,), float32 or float64
        Contiguous; holds the initial values. Engines write into it, and where memory is shared they replace it:
        use ``self.parameters`` each time, and keep no copy.

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


class TorchModule(Protocol):
    """A `torch.nn.Module`, which becomes a model by `mpidl.torch.TorchModel`."""

    def named_parameters(self) -> Any:
        """Yield the names and the parameters."""
        ...

    def state_dict(self) -> Any:
        """Return all tensors that are saved, by their names."""
        ...


class Evaluation(NamedTuple):
    """The result of evaluating a batch.

    Attributes
    ----------
    loss : float
        Mean loss times `weight`.
    correct : int or float
        Number of correct predictions; NaN where it has no meaning.
    outputs : array (n, ...), or None
        The outputs for the samples, in the model's array package, valid until the next call; None if unknown.
    weight, counted : float, optional
        What the loss is the mean over, and the number of predictions; by default both are the batch's weight.
    terms : sequence of float
        The mean of each term of the loss, times `weight`; the model's attribute ``terms`` has their names.
    """

    loss: float
    correct: int | float
    outputs: Any | None = None
    weight: float | None = None
    counted: float | None = None
    terms: Sequence[float] = ()

    def sums(self, batch: Batch) -> tuple[float, ...]:
        """Return the sums of loss and accuracy for `Figures.sums`."""
        weight = batch.total if self.weight is None else self.weight
        return weight, self.loss, batch.total if self.counted is None else self.counted, self.correct, *self.terms


class LayerSummary(NamedTuple):
    """A layer in a plan.

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


class GradientObserver(Protocol):
    """Takes the final part of a gradient."""

    def __call__(self, gradient: Any, start: int) -> None:
        """Take the elements from `start` on."""


class GivenUp(MpidlError):
    """A gradient is not needed any more."""


class PlacedModel:
    """A `Model` on the device where it computes. Subclasses implement `Model` and `evaluate`.

    Attributes
    ----------
    evaluated : {"by batch", "as a whole", "never"}
        Whether it is evaluated batch by batch, by itself, with one sample of the data as a sign, or not at all.
    """

    parameters: Any
    evaluated: Literal["by batch", "as a whole", "never"] = "by batch"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = vars(cls)
        if "loss_and_gradient" in own and "report_final" not in own:
            # What an inherited method reports may not be final in the gradient that this class returns.
            cls.report_final = PlacedModel.report_final  # type: ignore[method-assign]

    def loss_and_gradient(self, batch: Batch) -> tuple[float, Any]:
        raise NotImplementedError

    def evaluate(self, batch: Batch) -> Evaluation:
        """Return loss, correct predictions and outputs of a batch."""
        raise NotImplementedError

    def copy_to_host(self) -> None:
        """Copy the parameters to the model on the host that this one was made from, if any."""

    def requests(self, algorithm: Any, number: int, parameters: Any, replicas: int, state: Any) -> Any:
        """Return the requests of an algorithm's replica that computes with this model: those of `Algorithm.replica`."""
        return algorithm.replica(number, parameters, replicas, state)

    def loss_sums(self, loss: float, batch: Batch) -> tuple[float, float]:
        """Return the sum of the losses of a batch, and what their mean is over, given the loss of its gradient.

        The batch is that of the last gradient, and the sums are as in evaluations.
        """
        return float(loss) * batch.total, batch.total

    def report_final(self, take: GradientObserver | None) -> None:
        """Report the final part of a gradient while the rest is computed; by default, nothing is reported.

        Unless the loss isn't finite, the model calls `take`, if any, during `loss_and_gradient` from now on, with the
        vector to be returned and its first final element, which never increases. `take` may raise `GivenUp`, which
        passes through `loss_and_gradient`; the model's next gradient is as if there had been none. A subclass that
        overrides `loss_and_gradient` reports nothing, unless it overrides this method too.

        References
        ----------
        H. Zhang et al. (2017), Poseidon: an efficient communication architecture for distributed deep learning on GPU
        clusters, section 3.1.
        """


class ModelState:
    """What a model has besides its vector; by default, nothing.

    Attributes
    ----------
    own_buffers : sequence of str
        Names of float buffers that are no statistics, so that each replica has its own.
    """

    own_buffers: Sequence[str] = ()

    def constants(self) -> Mapping[str, np.ndarray]:
        """Return tensors of the model that training leaves alone, by name; checkpoints hold their first values."""
        return {}

    def load_constants(self, constants: Mapping[str, np.ndarray]) -> None:
        """Copy the values of all `constants` into the model."""

    def buffers(self) -> Mapping[str, np.ndarray]:
        """Return the tensors that each replica keeps for itself, by name, such as counters; checkpoints hold them.

        Gradients change them, evaluation does not. A constant may become one of them, with the values that the model
        has given it.
        """
        return {}

    def load_buffers(self, buffers: Mapping[str, np.ndarray]) -> None:
        """Copy the values of all `buffers` into the model."""

    def state(self) -> Mapping[str, Any]:
        """Return other arrays and numbers that each replica keeps for itself: checkpoints hold them, exports don't."""
        return {}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore what `state` has returned, as arrays."""


class CompleteModel(PlacedModel, ModelState, WithTables):
    """A model on the host with the full interface; `mpidl.nn.adapt` makes one of any `Model`.

    Subclasses set the attributes without a default and implement `Model` and `evaluate`. Those of `WithTables` are for
    models with tables.

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
        Whether it runs a user's own code, which `rehearse` tries before training.
    aliases : mapping of str to str
        Other names of tensors of the layout, such as those of tied weights: the name in the layout for each.
    pieces : sequence of Range
        Consecutive ranges of the vector, no two of which share a shard, since a push may change some alone; all by
        default.
    embeddings : sequence of str
        Names of the tensors whose rows are looked up.
    outputs_last : bool
        Whether the last axis of a weight is that of its outputs, rather than the first.
    movable : bool
        Whether it can compute on another device, by `on`; other models choose their device themselves.
    by_stages : str
        The module whose ``sections`` and ``stage`` cut it into stages, one for each rank of a replica, as
        `mpidl.partition.sections` describes; empty if it can't be cut like that.
    """

    layout: Layout
    dtype: np.dtype[Any]
    statistics: Sequence[Range] = ()
    takes_integers: bool = False
    own: bool = False
    pieces: Sequence[Range] = ()
    aliases: Mapping[str, str] = MappingProxyType({})
    embeddings: Sequence[str] = ()
    outputs_last: bool = True
    movable: bool = False
    by_stages: str = ""

    def outputs(self, batch: Batch) -> Any:
        """Return the outputs for the samples of a batch, whose targets may be None.

        Returns
        -------
        array (n, ...) or None
            In host memory; the next call may overwrite it. None if they are unknown.
        """
        return self.evaluate(batch).outputs

    def on(self, xp: Any) -> CompleteModel:
        """Return the same model for the arrays of `xp`, NumPy or CuPy, without parameters yet."""
        raise NotImplementedError

    def freeze(self, names: Sequence[str]) -> None:
        """Freeze the tensors of these names in the layout, and no others; their gradient need not be computed."""

    @property
    def drawn(self) -> bool:
        """Whether initial values are to be drawn from a seed, the same on all ranks, because none are allocated yet."""
        return False

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

    def rehearse(self, batch: Batch) -> Sequence[str]:
        """Try the gradient and the evaluation of a batch, if they may fail; change no buffers.

        Returns
        -------
        sequence of str
            Names of parameters that the model itself has changed, in place of a rule.

        Raises
        ------
        UsageError
            They failed.
        """
        return ()

    def unchanged(self) -> AbstractContextManager[Any]:
        """Return a context at whose end a user's object in the model is as it is now, despite passes through it."""
        return nullcontext()

    def finish(self) -> None:
        """Give a user's object in the model back: with the values of the vector, and nothing of the model attached."""

    def check_data(self, input_shape: Sequence[int] | None, classes: int | None) -> None:
        """Raise UsageError if inputs or the number of classes don't fit; None, if unknown, fits any."""

    def scoring(self, several_labels: bool) -> Scoring:
        """Return how the loss reads outputs and targets; `several_labels` if targets are rows of floats."""
        return PLAIN

    def summaries(self) -> list[LayerSummary] | None:
        """Return a summary of each layer; None if they are unknown."""
        return None

    def activation_bytes(self, samples: int) -> int | None:
        """Return the bytes that a batch of `samples` needs besides the vectors; None if they are unknown."""
        return None
