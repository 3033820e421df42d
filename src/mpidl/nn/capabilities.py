"""Optional capabilities of models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from mpidl.data.batch import Batch
from mpidl.data.kept import KeptState
from mpidl.errors import MpidlError
from mpidl.nn.model import CompleteModel


@runtime_checkable
class Movable(Protocol):
    """A model that can compute on another device; other models choose their device themselves."""

    def on(self, xp: Any) -> CompleteModel:
        """Return the same model for the arrays of `xp`, NumPy or CuPy, without parameters yet."""
        ...


@runtime_checkable
class Seeded(Protocol):
    """A model that draws its initial values from a seed."""

    @property
    def drawn(self) -> bool:
        """Whether its values are to be drawn, the same on all ranks, because none are allocated yet."""
        ...


@runtime_checkable
class Staged(Protocol):
    """A model that can be cut into stages, one for each rank of a replica.

    Attributes
    ----------
    by_stages : str
        The module of the package whose ``sections`` and ``stage`` do so; see `mpidl.partition.sections`.
    """

    by_stages: str


@runtime_checkable
class Wrapper(Protocol):
    """A model around a user's object, such as a PyTorch module, which it changes while it computes."""

    def finish(self) -> None:
        """Give the object back: with the values of the vector, and with nothing of the model attached to it."""
        ...

    def unchanged(self) -> AbstractContextManager[Any]:
        """Return a context at whose end the object has what it has now, whatever passes through it change."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """A model with state that each replica keeps for itself: checkpoints hold it, exports don't."""

    def state(self) -> Mapping[str, Any]:
        """Return the state, by name: arrays or numbers."""
        ...

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore what `state` has returned, as arrays."""
        ...


@runtime_checkable
class Buffered(Protocol):
    """A model that may have float buffers which are no statistics, so that each replica has its own.

    Attributes
    ----------
    own_buffers : sequence of str
        Their names.
    """

    own_buffers: Sequence[str]


@runtime_checkable
class Summing(Protocol):
    """A model whose loss isn't always the mean over a batch's samples."""

    def loss_sums(self, loss: float, batch: Batch) -> tuple[float, float]:
        """Return `loss_sums` of the batch of the last gradient, as in evaluations."""
        ...


def loss_sums(model: Any, loss: float, batch: Batch) -> tuple[float, float]:
    """Return the sum of the losses of a batch, and what their mean is over, given the loss of its gradient."""
    if isinstance(model, Summing):
        return model.loss_sums(float(loss), batch)
    return float(loss) * batch.total, batch.total


def kept_by_replica(model: CompleteModel, data: KeptState | None = None) -> dict[str, np.ndarray]:
    """Return what a replica keeps of a model and of data for itself, by its names in a checkpoint."""
    kept = {} if data is None else {f"data/{name}": values for name, values in data.state().items()}
    kept |= {f"buffers/{name}": values for name, values in model.buffers().items()}
    return kept | {f"state/{name}": np.asarray(values) for name, values in state_of(model).items()}


def state_of(model: Any) -> Mapping[str, Any]:
    """Return the state of a model that has some, else nothing."""
    return model.state() if isinstance(model, Stateful) else {}


@contextmanager
def on_loan(model: Any) -> Iterator[Any]:
    """Give the object that a model is around, if any, back to its owner at the end of this context."""
    try:
        yield model
    finally:
        if isinstance(model, Wrapper):
            model.finish()


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


@runtime_checkable
class Layered(Protocol):
    """A model of layers, whose cost is known before it runs."""

    def summaries(self) -> list[LayerSummary]:
        """Return a summary of each layer."""
        ...

    def activation_bytes(self, samples: int) -> int:
        """Return the bytes that a batch of `samples` needs besides the vectors."""
        ...


def summaries(model: CompleteModel) -> list[LayerSummary] | None:
    """Return a summary of each layer, None if they are unknown."""
    return model.summaries() if isinstance(model, Layered) else None


def activation_bytes(model: CompleteModel, samples: int) -> int | None:
    """Return the bytes that a batch of `samples` needs besides the vectors, None if they are unknown."""
    return model.activation_bytes(samples) if isinstance(model, Layered) else None


class GradientObserver(Protocol):
    """Takes the final part of a gradient."""

    def __call__(self, gradient: Any, start: int) -> None:
        """Take the elements from `start` on."""


class GivenUp(MpidlError):
    """A gradient is not needed any more."""


def report_final(model: Any, take: GradientObserver | None) -> None:
    """Have a model report the final part of a gradient while it computes the rest, if it can.

    It can if it has a method ``report_final``, which takes `take`. A subclass that overrides `loss_and_gradient` can't,
    unless it overrides that method too. Unless the loss isn't finite, the model calls `take`, if any, during
    `loss_and_gradient` from now on, with the vector to be returned and its first final element, which never increases.
    `take` may raise `GivenUp`, which passes through `loss_and_gradient`; the model's next gradient is as if there had
    been none.

    References
    ----------
    H. Zhang et al. (2017), Poseidon: an efficient communication architecture for distributed deep learning on GPU
    clusters, section 3.1.
    """
    for each in type(model).__mro__:
        if "report_final" in vars(each):
            model.report_final(take)
        if {"report_final", "loss_and_gradient"} & vars(each).keys():
            return
