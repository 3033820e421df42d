"""Networks on a GPU, with their vectors on the device or in the host's memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.data.batch import Batch
from mpidl.device import pinned
from mpidl.nn.network import Network


class OnDevice:
    """A model (`mpidl.nn.model.Model`) that computes a network's loss and gradient on a GPU.

    Batches are copied through pinned memory. Every method waits for the GPU, so that its time is measured correctly
    and the next batch may overwrite that memory.

    Parameters
    ----------
    network : Network
        The network on the host; its parameters are the initial values.
    xp
        CuPy.

    Attributes
    ----------
    parameters : cupy.ndarray, shape (layout.size,)
        The parameters on the device, like the gradient.
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
        """The flat vector (layout.size,) on the device; see `Network.parameters`."""
        return self._network.parameters

    @parameters.setter
    def parameters(self, vector: Any) -> None:
        self._network.parameters = vector

    def loss_and_gradient(self, batch: Batch) -> tuple[float, Any]:
        """See `Network.loss_and_gradient`; the batch lies on the host, the gradient on the device."""
        result = self._network.loss_and_gradient(self._uploaded(batch))
        self._synchronise()
        return result

    def evaluate(self, batch: Batch) -> tuple[float, int | float]:
        """See `Network.evaluate`; the batch lies on the host."""
        result = self._network.evaluate(self._uploaded(batch))
        self._synchronise()
        return result

    def copy_to_host(self) -> None:
        """Copy the parameters from the device into the network on the host."""
        self.parameters.get(out=self._host.parameters)

    def _uploaded(self, batch: Batch) -> Batch:
        inputs, targets = self._inputs.uploaded(batch.inputs), self._targets.uploaded(batch.targets)
        return Batch(inputs, targets, batch.number)

    def _synchronise(self) -> None:
        """Wait for the GPU: its inputs must not change, nor its outputs be read, before it is done."""
        self._xp.cuda.get_current_stream().synchronize()


class Mirrored(OnDevice):
    """`OnDevice` with parameters and gradient in pinned host memory, for engines whose vectors lie there.

    The parameters are uploaded with each batch, so that they may be written into at any time between batches.

    Parameters
    ----------
    network : Network
        The network on the host. Its parameters are moved to pinned memory and shared with this model.
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
        """The flat vector (layout.size,) in host memory; see `Network.parameters`."""
        vector: np.ndarray = self._host.parameters
        return vector

    @parameters.setter
    def parameters(self, vector: np.ndarray) -> None:
        self._host.parameters = vector

    def loss_and_gradient(self, batch: Batch) -> tuple[float, np.ndarray]:
        """See `Network.loss_and_gradient`; batch and gradient lie on the host."""
        loss, gradient = self._network.loss_and_gradient(self._uploaded(batch))
        gradient.get(out=self._gradient, blocking=False)
        self._synchronise()
        return loss, self._gradient

    def copy_to_host(self) -> None:
        """Do nothing: the parameters are the host network's."""

    def _uploaded(self, batch: Batch) -> Batch:
        self._network.parameters.set(self.parameters)
        return super()._uploaded(batch)


class _Staging:
    """Pinned memory and device memory for the largest batch so far."""

    def __init__(self, xp: Any) -> None:
        self._xp = xp
        self._host = np.empty(0)
        self._device: Any = None

    def uploaded(self, values: np.ndarray) -> Any:
        """Return a copy (n, ...) of `values` on the device; the next call overwrites it."""
        samples, old = len(values), self._host
        if samples > len(old) or values.shape[1:] != old.shape[1:] or values.dtype != old.dtype:
            self._host = pinned(self._xp, values.shape, values.dtype)
            self._device = self._xp.empty(values.shape, values.dtype)
        host, device = self._host[:samples], self._device[:samples]
        np.copyto(host, values)
        device.set(host)
        return device
