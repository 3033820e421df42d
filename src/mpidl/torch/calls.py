"""Calls of a PyTorch module and of its loss, as training and tests make them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from mpidl.errors import kind_of
from mpidl.nn.adaptation import ModelError
from mpidl.nn.frameworks import seed_of_batch
from mpidl.torch import losses


class Calls:
    """A module and a loss, with what calls of them depend on.

    Parameters
    ----------
    module : torch.nn.Module
    loss : callable
    name : str
        What errors call the module.
    seed, autocast, compile
        See `mpidl.torch.TorchModel`.

    Attributes
    ----------
    call : callable
        The module, compiled if it is to be.
    device : torch.device
        Where the parameters are.
    """

    def __init__(
        self, module: torch.nn.Module, loss: losses.Loss, name: str, seed: int, autocast: str | None, compile: bool
    ) -> None:
        self._module, self._loss, self._name, self._seed, self._autocast = module, loss, name, seed, autocast
        self.call: Any = torch.compile(module) if compile else module
        self.device = torch.device("cpu")
        self._training: bool | None = None

    def precision(self) -> AbstractContextManager[Any]:
        """Return what lets forward passes compute in the precision that is asked for."""
        return torch.autocast(self.device.type, torch.bfloat16) if self._autocast else nullcontext()

    def outputs(self, inputs: Any) -> Any:
        """Return what the module returns for a batch's inputs."""
        if isinstance(inputs, tuple | list):
            return self.call(*inputs)
        return self.call(**inputs) if isinstance(inputs, dict) else self.call(inputs)

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        """Return the loss, a tensor with one element.

        Raises
        ------
        ModelError
            It is something else, or outputs and targets don't go together.
        """
        if losses.is_one_of(losses.ELEMENTWISE, self._loss) and outputs.shape != targets.shape:
            raise ModelError(
                f"{self._name}: outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}, "
                f"expected the same for {getattr(self._loss, '__name__', self._loss)}"
            )
        loss = self._loss(outputs, targets)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            tensor = isinstance(loss, torch.Tensor)
            found = f"of shape {tuple(loss.shape)}" if tensor else kind_of(loss)
            raise ModelError(f"{self._name}: the loss is {found}, expected a tensor with one element, the batch's mean")
        return loss

    def set_mode(self, training: bool) -> None:
        """Let the module be trained, or tested."""
        if self._training is not training:
            self._training = training
            self._module.train(training)

    def seed_by(self, number: int) -> None:
        """Let random numbers follow from a batch's number."""
        seed = seed_of_batch(self._seed, number)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        torch.default_generator.manual_seed(seed)
