"""A PyTorch module in a loop: its gradients are those of its parameters."""

from __future__ import annotations

from functools import cache
from itertools import groupby, islice
from typing import Any

import torch

from mpidl.data.batch import Batch
from mpidl.launch.output import say
from mpidl.loops.model import InLoop, owned
from mpidl.loops.switch import LoopError
from mpidl.nn.adaptation import model_errors
from mpidl.parameters.ranges import Range
from mpidl.torch.model import TorchModel


class ModuleInLoop(InLoop, TorchModel):
    """A module, or several by their names, whose gradients a loop computes."""

    # Whether the loop has added up gradients of a batch that no step has dealt with.
    _between = False
    _changed_by_loop = False
    _versions: tuple[int, ...] = ()

    _names: tuple[str, ...] = ()

    @property
    def terms(self) -> tuple[str, ...]:
        """The names of the terms of the loss, or of the figures of a function that evaluates."""
        return tuple(super().terms) if self.loop.evaluate is None else self._names

    @terms.setter
    def terms(self, names: tuple[str, ...]) -> None:
        self._names = names

    @property
    def shown(self) -> Any:
        """The parameters of the module by their names."""
        return dict(self.module.named_parameters())

    def refresh(self) -> None:
        self._begin()
        self._gradients.check()
        self._vector.load_statistics()
        self._versions, self._between = self._present_versions(), False

    def begin_batch(self, batch: Batch) -> tuple[Any, Any]:
        if not self._between:
            self.refresh()
        self._between = True
        self._calls.set_mode(training=True)
        self._calls.seed_by(batch.number)
        inputs, targets = self._tensors.of(batch.inputs, "inputs"), self._tensors.of(batch.targets, "targets")
        return owned(inputs, _copied), owned(targets, _copied)

    def begin_parts(self) -> None:
        runs = groupby(self.layout, lambda tensor: tensor.name.split(".")[0])
        found = [(name, list(tensors)) for name, tensors in runs]
        self.pieces = [Range(tensors[0].range.start, tensors[-1].range.stop) for _, tensors in found]
        for (name, _), piece in zip(found, self.pieces, strict=True):
            self.parts.setdefault(name, []).append(piece)

    @cache  # noqa: B019 (a model is made once for a training)
    def _numbers(self, part: str | None) -> frozenset[int]:
        """Return the numbers of the parameters of a part, or of all."""
        names = (tensor.name.split(".")[0] for tensor in self.layout)
        found = enumerate(islice(names, len(self._vector.parameters)))
        return frozenset(number for number, name in found if part in (None, name))

    def step_gradient(self, given: Any, loss: Any, part: str | None) -> Any:
        if given is not None:
            raise LoopError("replica.step: gradient is for models of NumPy and JAX, expected loss.backward() before")
        if not self._changed_by_loop and self._versions != self._present_versions():
            self._changed_by_loop = True
            say("the loop changes parameters itself, by an optimiser of its own, say, as replica.step() does for it")
        numbers = self._numbers(part)
        own = [self._vector.parameters[number] for number in numbers]
        propagates = _has_graph(loss) and not any(each.grad is not None for each in own)
        with model_errors("replica.step: loss.backward()"):
            if propagates and part is None:
                self._gradients.of_loss(loss)
            elif propagates:
                others = [each for number, each in enumerate(self._vector.parameters) if number not in numbers]
                kept = [each.grad for each in others]
                for each in others:
                    each.grad = None
                loss.backward()
                for each, gradient in zip(others, kept, strict=True):
                    each.grad = gradient
        if not (propagates and part is None) and not self._gradients.collect(numbers.__contains__):
            raise LoopError("replica.step: no gradient since the last step, expected loss.backward() before")
        self._vector.store_statistics()
        self._tables.settle()
        return self._vector.gradient

    def begin_evaluation(self) -> None:
        self._attach()
        self._calls.set_mode(training=False)
        self._vector.load_statistics()

    def put_aside(self) -> tuple[bool, list[torch.Tensor | None]]:
        gradients = [each.grad for each in self._vector.parameters]
        for each in self._vector.parameters:
            each.grad = None
        return self._between, gradients

    def take_up(self, unstepped: tuple[bool, list[torch.Tensor | None]] | None) -> None:
        self._between, gradients = unstepped or (False, [None] * len(self._vector.parameters))
        for each, gradient in zip(self._vector.parameters, gradients, strict=True):
            each.grad = gradient

    def _present_versions(self) -> tuple[int, ...]:
        return tuple(each._version for each in self._vector.parameters)


def _has_graph(loss: Any) -> bool:
    return isinstance(loss, torch.Tensor) and loss.grad_fn is not None


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) and value.layout is torch.strided else value
