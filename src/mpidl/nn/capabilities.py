"""Optional capabilities of models."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

from mpidl.nn.model import CompleteModel


@runtime_checkable
class Movable(Protocol):
    """A model that can compute on another device; others compute where they like."""

    def on(self, xp: Any) -> CompleteModel:
        """Return the same model for the arrays of `xp`, NumPy or CuPy, without parameters yet."""
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
    """A model around an object of the user's, such as a PyTorch module."""

    def finish(self) -> None:
        """Give the object its final state when training is over; the vector has the trained values."""
        ...


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
