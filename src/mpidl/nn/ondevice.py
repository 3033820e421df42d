"""A network on a GPU, for engines whose vectors lie in the host's memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.data.batch import Batch
from mpidl.nn.network import Network


class OnDevice:
    """A model (`mpidl.nn.model.Model`) that computes with CuPy arrays what a network says.

    Parameters, gradient and batches pass through pinned memory, from and to which a GPU copies by itself at full
    speed. No method returns before the GPU is done, so that MPI and the host may read and write these at once.

    Parameters
    ----------
    network : Network
        On the host; its parameters are moved to pinned memory, and are this model's.
    xp
        CuPy.

    Attributes
    ----------
    layout, statistics
        The network's.
    """

    def __init__(self, network: Network, xp: Any) -> None:
        self._xp, self._host, self._network = xp, network, network.on(xp)
        self.layout, self.statistics = network.layout, network.statistics
        size = self.layout.size
        parameters = _pinned(xp, (size,), network.dtype)
        parameters[:] = network.parameters
        network.parameters = parameters
        self._network.parameters = xp.empty(size, network.dtype)
        self._gradient = _pinned(xp, (size,), network.dtype)
        self._inputs, self._targets = _Staging(xp), _Staging(xp)

    @property
    def parameters(self) -> np.ndarray:
        """Flat vector (layout.size,) in the host's memory; see `Network.parameters`."""
        return self._host.parameters

    @parameters.setter
    def parameters(self, vector: np.ndarray) -> None:
        self._host.parameters = vector

    def loss_and_gradient(self, batch: Batch) -> tuple[float, np.ndarray]:
        """See `Network.loss_and_gradient`; batch and gradient are the host's."""
        loss, gradient = self._network.loss_and_gradient(self._uploaded(batch))
        gradient.get(out=self._gradient, blocking=False)
        self._synchronise()
        return loss, self._gradient

    def evaluate(self, batch: Batch) -> tuple[float, int | float]:
        """See `Network.evaluate`; the batch is the host's."""
        result = self._network.evaluate(self._uploaded(batch))
        self._synchronise()
        return result

    def _uploaded(self, batch: Batch) -> Batch:
        """Upload the parameters as they are now, and a batch."""
        self._network.parameters.set(self.parameters)
        inputs, targets = self._inputs.uploaded(batch.inputs), self._targets.uploaded(batch.targets)
        return Batch(inputs, targets, batch.number)

    def _synchronise(self) -> None:
        """Wait until the GPU is done: nothing else may read what it writes, or write what it reads."""
        self._xp.cuda.get_current_stream().synchronize()


class _Staging:
    """Pinned memory and the device's, for the largest batch so far."""

    def __init__(self, xp: Any) -> None:
        self._xp = xp
        self._host = np.empty(0)
        self._device: Any = None

    def uploaded(self, values: np.ndarray) -> Any:
        """Return a copy (n, ...) of an array, on the device; the next call overwrites it."""
        samples, old = len(values), self._host
        if samples > len(old) or values.shape[1:] != old.shape[1:] or values.dtype != old.dtype:
            self._host = _pinned(self._xp, values.shape, values.dtype)
            self._device = self._xp.empty(values.shape, values.dtype)
        host, device = self._host[:samples], self._device[:samples]
        np.copyto(host, values)
        device.set(host)
        return device


def _pinned(xp: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an array in pinned memory, which lives as long as the array."""
    dtype = np.dtype(dtype)
    memory = xp.cuda.alloc_pinned_memory(int(np.prod(shape)) * dtype.itemsize)
    return np.ndarray(shape, dtype, buffer=memory)
