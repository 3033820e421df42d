"""A network on a GPU, whose vectors lie there too or are mirrored in the host's memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.data.batch import Batch
from mpidl.device import pinned
from mpidl.nn.network import Network


class OnDevice:
    """A model (`mpidl.nn.model.Model`) that computes with CuPy arrays what a network says.

    Batches pass through pinned memory. No method returns before the GPU is done, so that the time that it takes is
    the method's, and the next batch may overwrite that memory.

    Parameters
    ----------
    network : Network
        On the host; its parameters are the first values.
    xp
        CuPy.

    Attributes
    ----------
    parameters : cupy.ndarray, shape (layout.size,)
        On the device, as is the gradient.
    layout, statistics
        The network's.
    """

    def __init__(self, network: Network, xp: Any) -> None:
        self._xp, self._host, self._network = xp, network, network.on(xp)
        self.layout, self.statistics = network.layout, network.statistics
        self._network.parameters = xp.asarray(network.parameters)
        self._inputs, self._targets = _Staging(xp), _Staging(xp)

    @property
    def parameters(self) -> Any:
        """Flat vector (layout.size,) on the device; see `Network.parameters`."""
        return self._network.parameters

    @parameters.setter
    def parameters(self, vector: Any) -> None:
        self._network.parameters = vector

    def loss_and_gradient(self, batch: Batch) -> tuple[float, Any]:
        """See `Network.loss_and_gradient`; the batch is the host's, the gradient the device's."""
        result = self._network.loss_and_gradient(self._uploaded(batch))
        self._synchronise()
        return result

    def evaluate(self, batch: Batch) -> tuple[float, int | float]:
        """See `Network.evaluate`; the batch is the host's."""
        result = self._network.evaluate(self._uploaded(batch))
        self._synchronise()
        return result

    def settle(self) -> None:
        """Bring the parameters into those of the network on the host."""
        self.parameters.get(out=self._host.parameters)

    def _uploaded(self, batch: Batch) -> Batch:
        inputs, targets = self._inputs.uploaded(batch.inputs), self._targets.uploaded(batch.targets)
        return Batch(inputs, targets, batch.number)

    def _synchronise(self) -> None:
        """Wait until the GPU is done: nothing else may read what it writes, or write what it reads."""
        self._xp.cuda.get_current_stream().synchronize()


class Mirrored(OnDevice):
    """`OnDevice` for engines whose vectors lie in the host's memory: parameters and gradient are its own, pinned.

    Each batch uploads the parameters as they are then, so that anyone may write into them.

    Parameters
    ----------
    network : Network
        On the host; its parameters are moved to pinned memory, and are this model's.
    xp
        CuPy.
    """

    def __init__(self, network: Network, xp: Any) -> None:
        super().__init__(network, xp)
        parameters = pinned(xp, (self.layout.size,), network.dtype)
        parameters[:] = network.parameters
        network.parameters = parameters
        self._gradient = pinned(xp, (self.layout.size,), network.dtype)

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

    def settle(self) -> None:
        """See `OnDevice.settle`: they are the network's."""

    def _uploaded(self, batch: Batch) -> Batch:
        self._network.parameters.set(self.parameters)
        return super()._uploaded(batch)


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
            self._host = pinned(self._xp, values.shape, values.dtype)
            self._device = self._xp.empty(values.shape, values.dtype)
        host, device = self._host[:samples], self._device[:samples]
        np.copyto(host, values)
        device.set(host)
        return device
