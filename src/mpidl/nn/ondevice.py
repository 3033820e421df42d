"""Models on a GPU, with their vectors on the device or in the host's memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mpidl.data.batch import Batch
from mpidl.device import pinned
from mpidl.nn.model import CompleteModel, Evaluation, PlacedModel


class OnDevice(PlacedModel):
    """A model that computes another model's loss and gradient on a GPU.

    Batches are copied through pinned memory. Every method waits for the GPU, so that its time is measured correctly,
    and that the next batch may overwrite this memory.

    Parameters
    ----------
    model : CompleteModel
        The model on the host, which must be `movable`; its parameters are the initial values.
    xp
        CuPy.

    Attributes
    ----------
    parameters : cupy.ndarray, shape (size,)
        The parameters on the device, like the gradient.
    """

    def __init__(self, model: CompleteModel, xp: Any) -> None:
        self._xp, self._host, self._device = xp, model, model.on(xp)
        self._device.parameters = xp.asarray(model.parameters)
        self._inputs, self._targets = _Staging(xp), _Staging(xp)

    @property
    def parameters(self) -> Any:
        """The flat vector (size,) on the device."""
        return self._device.parameters

    @parameters.setter
    def parameters(self, vector: Any) -> None:
        self._device.parameters = vector

    def loss_and_gradient(self, batch: Batch) -> tuple[float, Any]:
        """Return the loss of a batch on the host, and its gradient on the device."""
        result = self._device.loss_and_gradient(self._uploaded(batch))
        self._synchronise()
        return result

    def evaluate(self, batch: Batch) -> Evaluation:
        """Return the evaluation of a batch on the host, with outputs on the device."""
        result = self._device.evaluate(self._uploaded(batch))
        self._synchronise()
        return result

    def copy_to_host(self) -> None:
        """Copy the parameters from the device to the model on the host."""
        self.parameters.get(out=self._host.parameters)

    def _uploaded(self, batch: Batch) -> Batch:
        inputs, targets = self._inputs.uploaded(batch.inputs), self._targets.uploaded(batch.targets)
        return batch._replace(inputs=inputs, targets=targets)

    def _synchronise(self) -> None:
        """Wait for the GPU: before that, its inputs must not change, nor its outputs be read."""
        self._xp.cuda.get_current_stream().synchronize()


class Mirrored(OnDevice):
    """`OnDevice` with parameters and gradient in pinned host memory, for engines with vectors in host memory.

    The parameters are uploaded with each batch, so that they may be changed at any time between batches.

    Parameters
    ----------
    model : CompleteModel
        The model on the host, which must be `movable`. Its parameters are moved to pinned memory and shared with this
        one.
    xp
        CuPy.
    """

    def __init__(self, model: CompleteModel, xp: Any) -> None:
        super().__init__(model, xp)
        parameters = pinned(xp, model.parameters.shape, model.dtype)
        parameters[:] = model.parameters
        model.parameters = parameters
        self._gradient = pinned(xp, parameters.shape, model.dtype)

    @property
    def parameters(self) -> Any:
        """The flat vector (size,) in host memory."""
        return self._host.parameters

    @parameters.setter
    def parameters(self, vector: Any) -> None:
        self._host.parameters = vector

    def loss_and_gradient(self, batch: Batch) -> tuple[float, np.ndarray]:
        """Return the loss of a batch and its gradient, all on the host."""
        loss, gradient = self._device.loss_and_gradient(self._uploaded(batch))
        gradient.get(out=self._gradient, blocking=False)
        self._synchronise()
        return loss, self._gradient

    def copy_to_host(self) -> None:
        """Do nothing: the parameters are shared with the model on the host."""

    def _uploaded(self, batch: Batch) -> Batch:
        self._device.parameters.set(self.parameters)
        return super()._uploaded(batch)


class _Staging:
    """Pinned memory and device memory for the largest batch so far."""

    def __init__(self, xp: Any) -> None:
        self._xp = xp
        self._memory: dict[str, tuple[np.ndarray, Any]] = {}

    def uploaded(self, values: Any, place: str = "") -> Any:
        """Return a copy on the device, which the next call overwrites, of an array (n, ...).

        Arrays may be nested in tuples, lists and mappings; other values don't change. `place` distinguishes arrays.
        """
        if isinstance(values, tuple | list):
            return type(values)(self.uploaded(each, f"{place}/{number}") for number, each in enumerate(values))
        if isinstance(values, Mapping):
            return {key: self.uploaded(each, f"{place}/{key}") for key, each in values.items()}
        if not isinstance(values, np.ndarray) or not values.ndim:
            return values
        samples = len(values)
        memory = self._memory.get(place)
        if memory is None or samples > len(memory[0]) or not _alike(values, memory[0]):
            memory = pinned(self._xp, values.shape, values.dtype), self._xp.empty(values.shape, values.dtype)
            self._memory[place] = memory
        host, device = memory[0][:samples], memory[1][:samples]
        np.copyto(host, values)
        device.set(host)
        return device


def _alike(values: np.ndarray, others: np.ndarray) -> bool:
    """Return whether two arrays differ at most in length."""
    return values.shape[1:] == others.shape[1:] and values.dtype == others.dtype
