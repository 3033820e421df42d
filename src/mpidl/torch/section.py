"""Stages of PyTorch modules: consecutive modules of a `torch.nn.Sequential` on each rank."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mpidl.data.batch import Batch
from mpidl.data.kept import METHODS, methods
from mpidl.errors import UsageError
from mpidl.nn.adaptation import ModelError, model_errors
from mpidl.nn.model import Evaluation
from mpidl.partition.schedules import BackwardPart, MicroBatch
from mpidl.partition.sections import Sections, Submodule, cut_into_sections
from mpidl.torch.model import TorchModel
from mpidl.torch.module_state import copied

__all__ = ["TorchStage", "sections", "stage"]


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
    if model.tables:
        raise UsageError(f"topology.stages: {stages}, but {model.tables[0].name} is a table on the servers, expected 1")
    if methods(module, METHODS[:1]) is not None:
        raise UsageError(f"topology.stages: {stages}, but {type(module).__name__} has a state of its own, expected 1")
    if {name.partition(".")[0] for name in model.layout.shapes} - dict(module.named_children()).keys():
        raise UsageError(f"topology.stages: {stages}, but the loss has parameters to train, expected 1")
    modules, averaged = [], {name for part in model.statistics for name in _names(model, part)}
    for number, (key, _) in enumerate(module.named_children()):
        names = [name for name in model.layout.shapes if name.startswith(f"{key}.")]
        cost = None if costs is None else costs[number]
        trained = [name for name in names if name not in averaged]
        modules.append(Submodule(trained, [name for name in names if name in averaged], cost))
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


class TorchStage(TorchModel):
    """Consecutive modules of a `torch.nn.Sequential`, on the CPU, for a plan of `sections`: a `StageModel`.

    They are computed one by one if the backward pass has two parts (`apart`), otherwise together.
    """

    def __init__(self, whole: TorchModel, plan: Sections, rank: int, *, apart: bool) -> None:
        children = list(whole.module.named_children())[slice(*plan.runs[rank])]
        module, _ = copied(torch.nn.Sequential(OrderedDict(children)), whole.loss, whole._frozen)
        self._first, self._last = rank == 0, rank == plan.stages - 1
        # What another stage had of the loss would be saved, too.
        loss = whole.loss if self._last else torch.nn.functional.mse_loss
        super().__init__(module, loss, **(whole._settings | {"micro_batches": 1}))
        self._name, self._apart = f"model: stage {rank}", apart
        self._kept: dict[int, _Activations] = {}

    def begin(self, batch: Batch) -> None:
        self._begin()
        self._targets = self._tensors.of(batch.targets, "all targets") if self._last else None
        self._gradients.begin(batch.number)

    def compute(self, inputs: Any, own: MicroBatch) -> np.ndarray | None:
        with model_errors(self._name):
            kept = self._kept[own.slot] = self._through(self._tensors.of(inputs, f"inputs {own.slot}"))
            outputs = kept.outputs[-1]
            if self._last:
                return None
            if not isinstance(outputs, torch.Tensor) or outputs.shape[:1] != (own.samples.size,):
                found = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
                raise ModelError(f"{self._name} returned {found}, expected a tensor of {own.samples.size} samples")
            return self.host(outputs)

    def _through(self, inputs: torch.Tensor) -> _Activations:
        """Pass inputs through the modules."""
        kept, values = _Activations(), inputs
        for call in self.module if self._apart else [self._calls.call]:
            values = values.detach()
            if kept.outputs or not self._first:
                values.requires_grad_()
            kept.inputs.append(values)
            # Modules that work in place get a copy: the gradient is taken of the values, and others keep them.
            modules = (call if self._apart else self.module).modules()
            changes = any(getattr(each, "inplace", False) for each in modules)
            with self._calls.precision():
                values = call(values.clone() if changes else values)
            kept.outputs.append(values)
        return kept

    def weighted_loss(self, targets: Any, own: MicroBatch) -> float:
        kept = self._kept[own.slot]
        with model_errors(self._name), self._calls.precision():
            part = self._tensors.of(targets, "targets")
            share = self._calls.share(part, self._targets, own.share)
            # The mean over no targets is NaN.
            loss = self._calls.loss(kept.outputs[-1], part) * share if share else kept.outputs[-1].sum() * 0
        kept.outputs[-1] = loss
        return float(loss.item())

    def back(self, gradient: np.ndarray | None, own: MicroBatch, part: BackwardPart) -> np.ndarray | None:
        kept = self._kept[own.slot] if part == "inputs" else self._kept.pop(own.slot)
        given = None if gradient is None else torch.from_numpy(gradient)
        with model_errors(self._name):
            if part == "weights":
                self._back_weights(kept)
                return None
            if part == "both":
                if kept.outputs[-1].requires_grad:  # not of a first stage that is frozen
                    kept.outputs[-1].backward(given)
                found = kept.inputs[0].grad
            else:
                found = self._back_inputs(kept, given)
            return None if self._first or found is None else found.numpy()

    def _back_inputs(self, kept: _Activations, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Return the gradient of the inputs, if they need one, and keep those between the modules."""
        kept.gradients = [gradient]
        for inputs, outputs in zip(kept.inputs[::-1], kept.outputs[::-1], strict=True):
            if not inputs.requires_grad:
                break
            (gradient,) = torch.autograd.grad(outputs, inputs, gradient, retain_graph=True)
            kept.gradients.append(gradient)
        return gradient

    def _back_weights(self, kept: _Activations) -> None:
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

    def end(self) -> Any:
        self._gradients.end()
        self._vector.store_statistics()
        return self._vector.gradient

    def test(self, inputs: Any) -> torch.Tensor:
        found: torch.Tensor = self._tested(lambda batch: self._forward(batch.inputs), Batch(inputs, None))
        return found

    def host(self, outputs: torch.Tensor) -> np.ndarray:
        array: np.ndarray = outputs.detach().to(self._vector.parameters[0].dtype).numpy()
        return array

    def judge(self, batch: Batch, outputs: torch.Tensor) -> Evaluation:
        with torch.no_grad():
            return self._figures(outputs, self._tensors.of(batch.targets, "targets"), batch)


stage = TorchStage
