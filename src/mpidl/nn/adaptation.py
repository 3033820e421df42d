"""A user's own model behind the full interface, with its members checked, and its errors in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isclose
from typing import Any

import numpy as np

from mpidl.data.batch import Batch
from mpidl.data.kept import methods
from mpidl.errors import MpidlError, UsageError, nearest, quoted, raised
from mpidl.nn.model import CompleteModel, Evaluation, Model
from mpidl.parameters.layout import Layout

#: Relative difference of numbers that are the same but for rounding.
CLOSE = 1e-3

__all__ = ["ModelError", "adapt", "as_usage_errors", "model_errors"]


class ModelError(MpidlError):
    """A user's model raised an error, or returned a wrong result; the message names the model."""


def adapt(model: Model) -> CompleteModel:
    """Return `model` with the full interface, or itself if it has that; UsageError for a missing or wrong member."""
    return model if isinstance(model, CompleteModel) else _AdaptedModel(model)


@contextmanager
def model_errors(what: str) -> Iterator[None]:
    """Convert errors of a user's code, named `what`, to `ModelError`."""
    try:
        yield
    except MpidlError:
        raise
    except Exception as error:
        raise ModelError(f"{what} {raised(error)}") from error


@contextmanager
def as_usage_errors() -> Iterator[None]:
    """Convert a `ModelError` before the training to a `UsageError`."""
    try:
        yield
    except ModelError as error:
        raise UsageError(str(error)) from error.__cause__


def weighted(terms: Mapping[str, Any], weights: Mapping[str, float], what: str) -> Any:
    """Return the sum of the terms of a loss, times their weights, which are 1 where none is given.

    Raise ModelError, about `what`, if a weight has no term.
    """
    for name in weights:
        if name not in terms:
            known = nearest(name, list(terms)) if terms else ": it is no mapping"
            raise ModelError(f"{what}: loss_weights: {name}: the loss has no such term{known}")
    return sum(weights.get(name, 1.0) * term for name, term in terms.items())


class _AdaptedModel(CompleteModel):
    """A user's object, and the members that it lacks."""

    own = True

    def __init__(self, model: Model) -> None:
        self._model, self._name, self._own_state = model, f"model: {type(model).__name__}", methods(model)
        for member in ("parameters", "loss_and_gradient"):
            if self._member(member) is None:
                raise UsageError(f"{self._name} has no {member}, expected a mpidl.nn.Model")
        parameters = self._member("parameters")
        self._check_parameters(parameters)
        self.dtype = parameters.dtype
        layout = self._member("layout")
        self.layout = Layout([("parameters", parameters.shape)]) if layout is None else layout
        statistics = self._member("statistics")
        self.statistics = () if statistics is None else statistics
        self._check_parts(parameters.size)
        self._loss_and_gradient = self._method("loss_and_gradient")
        self._evaluate = None if self._member("evaluate") is None else self._method("evaluate")

    def _member(self, name: str) -> Any:
        try:
            return getattr(self._model, name, None)
        except Exception as error:
            raise UsageError(f"{self._name}.{name} {raised(error)}") from error

    def _method(self, name: str) -> Callable[[Batch], Any]:
        method: Callable[[Batch], Any] = self._member(name)
        if not callable(method):
            raise UsageError(f"{self._name}.{name}: found {_kind(method)}, expected a method that takes a batch")
        return method

    def _check_parameters(self, parameters: Any) -> None:
        expected = "expected a contiguous NumPy array (size,) of float32 or float64 that can be written"
        suits = (
            isinstance(parameters, np.ndarray)
            and parameters.ndim == 1
            and parameters.size > 0
            and parameters.dtype in (np.float32, np.float64)
            and parameters.flags.c_contiguous
            and parameters.flags.writeable
        )
        if not suits:
            raise UsageError(f"{self._name}.parameters: found {_kind(parameters)}, {expected}")

    def _check_parts(self, size: int) -> None:
        if not isinstance(self.layout, Layout) or self.layout.size != size:
            found = f"{self.layout.size} elements" if isinstance(self.layout, Layout) else _kind(self.layout)
            raise UsageError(f"{self._name}.layout: found {found}, expected a Layout of {size}, as in parameters")
        try:
            inside = all(0 <= part.start <= part.stop <= size for part in self.statistics)
        except (TypeError, AttributeError):
            inside = False
        if not inside:
            raise UsageError(
                f"{self._name}.statistics: found {quoted(self.statistics)}, expected Ranges within 0 to {size}"
            )

    @property
    def parameters(self) -> Any:
        return self._model.parameters

    @parameters.setter
    def parameters(self, vector: Any) -> None:
        self._model.parameters = vector

    def loss_and_gradient(self, batch: Batch) -> tuple[float, Any]:
        """Return the mean loss over the batch and its gradient; ModelError if the object failed."""
        loss, gradient = self._tuple("loss_and_gradient", self._loss_and_gradient, batch)
        suits = (
            type(gradient) is np.ndarray
            and gradient.shape == (self.layout.size,)
            and gradient.dtype == self.dtype
            and gradient.flags.c_contiguous
        )
        if not suits:
            raise ModelError(
                f"{self._name}.loss_and_gradient returned as gradient {_kind(gradient)}, "
                f"expected contiguous {self.dtype} of shape ({self.layout.size},), as parameters"
            )
        return self._number("loss_and_gradient", "loss", loss), gradient

    def evaluate(self, batch: Batch) -> Evaluation:
        """Return the evaluation of a batch, without correctness if the object has none; ModelError if it failed."""
        if self._evaluate is None:
            return Evaluation(self.loss_and_gradient(batch)[0] * batch.total, float("nan"))
        loss, correct, *outputs = self._tuple("evaluate", self._evaluate, batch)
        return Evaluation(
            self._number("evaluate", "loss", loss), self._number("evaluate", "correct predictions", correct), *outputs
        )

    def rehearse(self, batch: Batch) -> Sequence[str]:
        state = {name: np.array(values) for name, values in self.state().items()}
        with as_usage_errors():
            mean, _ = self.loss_and_gradient(batch)
            if self._evaluate is not None:
                self._check_sums(batch, mean)
        self.load_state(state)
        return ()

    def _check_sums(self, batch: Batch, mean: float) -> None:
        """Raise UsageError if the object evaluates a batch by means; `mean` is the loss that it gives with a gradient.

        The sums of two parts of a batch must add up to the sum of the whole, whatever else a model does in training.
        """
        whole, samples = self.evaluate(batch)[:2], batch.total
        parts = _parts(batch)
        found = [self.evaluate(part)[:2] for part in parts]
        shares = [part.total / samples for part in parts]
        for what, value, *of_parts in zip(("loss", "correct predictions"), whole, *found, strict=True):
            average = sum(share * part for share, part in zip(shares, of_parts, strict=True))
            if value and isclose(average, value, rel_tol=CLOSE) and not isclose(sum(of_parts), value, rel_tol=0.1):
                raise UsageError(
                    f"{self._name}.evaluate returned as {what} {value:.4g}, a mean over the batch, expected the sum "
                    f"over its {samples:g} samples"
                )
        total = sum(loss for loss, _ in found)
        if total and isclose(total, whole[0], rel_tol=CLOSE) and isclose(mean, total, rel_tol=CLOSE):
            raise UsageError(
                f"{self._name}.loss_and_gradient returned as loss {mean:.4g}, the sum over the batch's {samples:g} "
                "samples, expected the mean, and its gradient"
            )

    def state(self) -> Mapping[str, Any]:
        """Return the object's ``state()``, if it has one."""
        with model_errors(f"{self._name}.state"):
            return {} if self._own_state is None else self._own_state[0]()

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore the object's state; ModelError if that fails."""
        if state and self._own_state is not None:
            with model_errors(f"{self._name}.load_state"):
                self._own_state[1](state)

    def _tuple(self, name: str, method: Callable[[Batch], Any], batch: Batch) -> Any:
        with model_errors(f"{self._name}.{name}"):
            result = method(batch)
        lengths = (2,) if name == "loss_and_gradient" else (2, 3, len(Evaluation._fields))
        if not isinstance(result, tuple | list) or len(result) not in lengths:
            pair = "(loss, gradient)" if name == "loss_and_gradient" else "(sum of the losses, correct predictions)"
            raise ModelError(f"{self._name}.{name} returned {_kind(result)}, expected {pair}")
        return result

    def _number(self, name: str, what: str, value: Any) -> float:
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            raise ModelError(f"{self._name}.{name} returned as {what} {_kind(value)}, expected a number") from None


def _parts(batch: Batch) -> list[Batch]:
    """Return two parts of a batch; none if it has a single sample, samples of its own kind, or weights."""
    inputs, targets = batch.inputs, batch.targets
    arrays = isinstance(inputs, np.ndarray) and isinstance(targets, np.ndarray) and len(inputs) == len(targets)
    if not arrays or len(inputs) < 2 or batch.total != len(inputs):
        return []
    first = slice(len(inputs) // 2)
    rest = slice(first.stop, None)
    return [Batch(inputs[part], targets[part], batch.number) for part in (first, rest)]


def _kind(value: Any) -> str:
    """Describe a value for an error."""
    if type(value) is np.ndarray:
        kind = f"{value.dtype} of shape {value.shape}"
        if not (value.flags.c_contiguous and value.flags.writeable):
            kind += " that " + ("can't be written" if value.flags.c_contiguous else "isn't contiguous")
        return kind
    return "None" if value is None else f"{type(value).__name__}"
