"""Stages of PyTorch modules: consecutive modules of a `torch.nn.Sequential` on each rank."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mpidl.data.batch import Batch
from mpidl.errors import UsageError
from mpidl.nn.adaptation import ModelError, model_errors
from mpidl.nn.model import Evaluation
from mpidl.partition.schedules import MicroBatch
from mpidl.partition.section import Part, Section
from mpidl.partition.sections import Module, Sections, cut_into_sections
from mpidl.torch.model import TorchModel

__all__ = ["TorchSection", "section", "sections"]


def sections(model: TorchModel, stages: int, costs: Sequence[float] | None = None) -> Sections:
    """Cut a model whose module is a `torch.nn.Sequential` into stages, as `mpidl.partition.sections.sections_of` does.

    Raises
    ------
    UsageError
        The module isn't a `torch.nn.Sequential`, two stages would share a parameter, or there are too few modules with
        parameters.
    """
    module = model.module
    if type(module).forward is not torch.nn.Sequential.forward:
        kind = type(module).__name__
        raise UsageError(f"topology.stages: {stages}, but a {kind} can't be cut, expected 1, or a torch.nn.Sequential")
    modules, averaged = [], {name for part in model.statistics for name in _names(model, part)}
    for number, (key, _) in enumerate(module.named_children()):
        names = [name for name in model.layout.shapes if name.startswith(f"{key}.")]
        cost = None if costs is None else costs[number]
        trained = [name for name in names if name not in averaged]
        modules.append(Module(trained, [name for name in names if name in averaged], cost))
    found = cut_into_sections(modules, model.layout.shapes, stages)
    keys = [key for key, _ in module.named_children()]
    stage_of = {key: stage for stage, run in enumerate(found.runs) for key in keys[slice(*run)]}
    for alias, name in model.aliases.items():
        if stage_of[alias.partition(".")[0]] != stage_of[name.partition(".")[0]]:
            raise UsageError(
                f"topology.stages: {stages}, but {alias} is {name} in another stage, expected fewer stages, or no tied "
                "weights"
            )
    return found


def _names(model: TorchModel, part: Any) -> list[str]:
    return [piece.name for piece in model.layout.within(part)]


class _Activations:
    """The arguments and results of a stage's modules for a micro-batch, and the gradients of the results."""

    def __init__(self) -> None:
        self.inputs: list[torch.Tensor] = []
        self.outputs: list[torch.Tensor] = []
        self.gradients: list[torch.Tensor | None] = []


class _Stage(TorchModel):
    """A run of modules, computed one by one if the backward pass has two parts, otherwise together."""

    def begin(self, batch: Batch) -> None:
        """Prepare for a minibatch's gradient."""
        self._gradients.begin(batch.number)

    def end(self) -> Any:
        """Return the minibatch's gradient."""
        self._gradients.fill()
        self._vector.store_statistics()
        return self._vector.gradient

    def tensors(self, values: Any, place: str) -> Any:
        """Return an array as a tensor, floats in the parameters' dtype."""
        return self._tensors.of(values, place)

    def through(self, inputs: torch.Tensor, first: bool, apart: bool) -> _Activations:
        """Pass inputs through the modules, separately if `apart`."""
        kept, values = _Activations(), inputs
        for call in self.module if apart else [self._calls.call]:
            values = values.detach()
            if kept.outputs or not first:
                values.requires_grad_()
            kept.inputs.append(values)
            # Modules that work in place get a copy: the gradient is taken of the values, and others keep them.
            changes = any(getattr(each, "inplace", False) for each in (call if apart else self.module).modules())
            with self._calls.precision():
                values = call(values.clone() if changes else values)
            kept.outputs.append(values)
        return kept

    def add_loss(self, kept: _Activations, targets: Any, share: float) -> float:
        """Return the mean loss times a share, from which the backward pass begins."""
        with self._calls.precision():
            loss = self._calls.loss(kept.outputs[-1], targets) * share
        kept.outputs[-1] = loss
        return float(loss.item())

    def backward(self, kept: _Activations, gradient: torch.Tensor | None) -> None:
        """Compute all gradients."""
        kept.outputs[-1].backward(gradient)

    def backward_inputs(self, kept: _Activations, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Return the gradient of the inputs, if they need one, and keep those between the modules."""
        kept.gradients = [gradient]
        for inputs, outputs in zip(kept.inputs[::-1], kept.outputs[::-1], strict=True):
            if not inputs.requires_grad:
                break
            (gradient,) = torch.autograd.grad(outputs, inputs, gradient, retain_graph=True)
            kept.gradients.append(gradient)
        return gradient

    def backward_weights(self, kept: _Activations) -> None:
        """Add the gradients of the parameters to those of the minibatch."""
        numbers = {id(each): number for number, each in enumerate(self._vector.parameters)}
        for module, outputs, gradient in zip(
            reversed(list(self.module)), kept.outputs[::-1], kept.gradients, strict=False
        ):
            own = [each for each in module.parameters() if each.requires_grad]
            if not own:
                continue
            found = torch.autograd.grad(outputs, own, gradient, allow_unused=True)
            for parameter, its in zip(own, found, strict=True):
                if its is not None:
                    parameter.grad = its
                    self._gradients.store(numbers[id(parameter)], parameter)

    def judge(self, batch: Batch, outputs: torch.Tensor) -> Evaluation:
        """Return the evaluation of a batch's outputs."""
        with torch.no_grad():
            return self._figures(outputs, self.tensors(batch.targets, "targets"), batch.total)

    def host(self, outputs: torch.Tensor) -> np.ndarray:
        """Return a tensor as an array of the parameters' dtype."""
        array: np.ndarray = outputs.detach().to(self._vector.parameters[0].dtype).numpy()
        return array

    def test(self, inputs: Any) -> torch.Tensor:
        """Return the outputs in evaluation mode."""

        def outputs(_: Any) -> torch.Tensor:
            with self._calls.precision():
                found: torch.Tensor = self._calls.call(self.tensors(inputs, "tested"))
                return found

        return self._tested(outputs, Batch(inputs, None))


class TorchSection(Section):
    """A stage of a `torch.nn.Sequential`, on the CPU, for a plan of `sections`."""

    def __init__(
        self,
        whole: TorchModel,
        plan: Sections,
        rank: int,
        *,
        schedule: str = "one_forward_one_backward",
        micro_batches: int = 1,
    ) -> None:
        super().__init__(whole, plan, rank, schedule=schedule, micro_batches=micro_batches)
        children = list(whole.module.named_children())[slice(*plan.runs[rank])]
        module = copy.deepcopy(torch.nn.Sequential(OrderedDict(children)))
        self._stage = _Stage(module, whole.loss, **(whole.settings | {"micro_batches": 1}))
        self._apart = schedule == "zero_bubble"
        self._kept: dict[int, _Activations] = {}
        self._name = f"model: stage {rank}"

    @property
    def parameters(self) -> Any:
        """The rank's part of the flat vector, (slice.size,)."""
        return self._stage.parameters

    @parameters.setter
    def parameters(self, vector: Any) -> None:
        self._stage.parameters = vector

    def freeze(self, names: Sequence[str]) -> None:
        self._stage.freeze([name for name in names if name in self._stage.layout.shapes])

    def constants(self) -> dict[str, np.ndarray]:
        """Return the constants of the stage."""
        return self._stage.constants()

    def buffers(self) -> dict[str, np.ndarray]:
        """Return the buffers of the stage."""
        return self._stage.buffers()

    def load_buffers(self, buffers: Any) -> None:
        self._stage.load_buffers(buffers)

    def _begin(self, batch: Batch) -> None:
        self._stage.begin(batch)

    def _compute(self, inputs: Any, own: MicroBatch) -> np.ndarray | None:
        with model_errors(self._name):
            kept = self._kept[own.slot] = self._stage.through(
                self._stage.tensors(inputs, f"inputs {own.slot}"), self._first, self._apart
            )
            return None if self._last else self._array(kept.outputs[-1], own)

    def _loss(self, targets: Any, own: MicroBatch) -> float:
        with model_errors(self._name):
            return self._stage.add_loss(self._kept[own.slot], self._stage.tensors(targets, "targets"), own.share)

    def _back(self, gradient: np.ndarray | None, own: MicroBatch, part: Part) -> np.ndarray | None:
        kept = self._kept[own.slot] if part == "inputs" else self._kept.pop(own.slot)
        given = None if gradient is None else torch.from_numpy(gradient)
        with model_errors(self._name):
            if part == "weights":
                self._stage.backward_weights(kept)
                return None
            if part == "both":
                self._stage.backward(kept, given)
                found = kept.inputs[0].grad
            else:
                found = self._stage.backward_inputs(kept, given)
            return None if self._first or found is None else found.numpy()

    def _end(self) -> Any:
        return self._stage.end()

    def _test(self, inputs: Any) -> Any:
        return self._stage.test(inputs)

    def _host(self, outputs: Any) -> np.ndarray:
        return self._stage.host(outputs)

    def _judge(self, batch: Batch, outputs: Any) -> Evaluation:
        return self._stage.judge(batch, outputs)

    def _array(self, outputs: Any, own: MicroBatch) -> np.ndarray:
        """Return the array for the next stage."""
        if not isinstance(outputs, torch.Tensor) or outputs.shape[:1] != (own.samples.size,):
            found = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
            raise ModelError(f"{self._name} returned {found}, expected a tensor of {own.samples.size} samples")
        return self._stage.host(outputs)


section = TorchSection
