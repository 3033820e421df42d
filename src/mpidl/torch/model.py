"""A PyTorch module and a loss as a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch

from mpidl.data.batch import Batch
from mpidl.errors import UsageError, kind_of
from mpidl.metrics.metric import Scoring
from mpidl.nn.adaptation import ModelError, as_usage_errors, model_errors
from mpidl.nn.model import CompleteModel, Evaluation, GradientObserver
from mpidl.tables.lookups import Wanted
from mpidl.torch import losses
from mpidl.torch.arrays import as_array
from mpidl.torch.calls import Calls, TensorConverter, check_compiled
from mpidl.torch.gradients import Gradients
from mpidl.torch.loan import Loan
from mpidl.torch.module_state import ModuleSnapshot, ModuleState, copied
from mpidl.torch.tables import Tables
from mpidl.torch.vector import EMBEDDINGS, Vector, parameters_in, parts_of

__all__ = ["TorchModel"]

T = TypeVar("T")


class TorchModel(CompleteModel):
    """A `torch.nn.Module` and a loss as a model.

    The module's parameters become views of the model's vector. A layer's gradient moves into the flat gradient while it
    is in the cache, which is faster than PyTorch's accumulation.

    A batch's inputs are the module's argument, a tuple or a list its arguments, and a mapping its keyword arguments.
    Arrays of floats are converted to the dtype of the parameters.

    Parameters
    ----------
    module : torch.nn.Module
        Its parameters are all float32 or all float64; frozen ones (``requires_grad = False``) are constants. Its
        running means of normalisation are statistics; each replica keeps its other buffers.
    loss : str or callable
        A loss of `torch.nn.functional` by name, or a function of (outputs, targets) that returns the mean loss over
        the batch as a tensor with one element, or a mapping of named means, the terms that are summed. What losses of
        PyTorch leave out (``ignore_index``, a class of weight 0), accuracy and metrics leave out, too; a loss of one's
        own may have an ``ignore_index``. If it is a module with parameters, these are trained as well; the names of its
        tensors begin with ``loss.``.
    seed : int
        Seed of the module's random numbers (dropout), together with a batch's number in the run.
    autocast : {"bfloat16"}, optional
        Compute forward passes in this precision where PyTorch considers it safe; parameters and gradients keep theirs.
    compile : bool
        Compile the module with `torch.compile`.
    micro_batches : int
        Number of pieces in which to compute the gradient of a batch, one after another, to save memory.
    takes_integers : bool, optional
        Whether integer inputs, including bytes, stay integers rather than become floats; by default, if the module has
        a `torch.nn.Embedding`. Data sets with a collate function are never converted.
    loss_weights : mapping of str to float, optional
        Factors of the terms of a loss that returns a mapping of named means; 1 by default.

    Raises
    ------
    UsageError
        The module has nothing to train, or parameters of other dtypes; the loss is unknown.

    Examples
    --------
    >>> model = TorchModel(torch.nn.Linear(3, 2), "cross_entropy")
    >>> model.layout.size
    8
    """

    own, movable, outputs_last = True, True, False
    by_stages = "mpidl.torch.section"

    def __init__(
        self,
        module: torch.nn.Module,
        loss: str | losses.Loss,
        *,
        seed: int = 0,
        autocast: str | None = None,
        compile: bool = False,
        micro_batches: int = 1,
        takes_integers: bool | None = None,
        loss_weights: Mapping[str, float] | None = None,
    ) -> None:
        if autocast not in (None, "bfloat16"):
            raise UsageError(f"autocast: {autocast!r}, expected 'bfloat16' or None")
        self.module, self._name = module, f"model: {type(module).__name__}"
        check_compiled(module, self._name)
        self.loss = losses.by_name(loss) if isinstance(loss, str) else loss
        if not callable(self.loss):
            raise UsageError(f"{self._name}: loss: found {kind_of(loss)}, expected a name or a function")
        self._settings: dict[str, Any] = {
            "seed": seed, "autocast": autocast, "compile": compile, "micro_batches": micro_batches,
            "takes_integers": takes_integers, "loss_weights": loss_weights,
        }  # fmt: skip
        self._parts, self._others = parts_of(module, self.loss)
        self._vector = Vector(self._parts, self._name)
        self._state = ModuleState(self._parts, self._others, {*self._vector.layout.shapes, *self._vector.aliases})
        self._tables = Tables(self, self._parts, self._name, self._vector.parameters[0].dtype, compile)
        self.tables, self.weights = self._tables.specs, self._tables
        self.layout, self.dtype, self.statistics = self._vector.layout, self._vector.dtype, self._vector.statistics
        self.aliases, self.own_buffers = self._vector.aliases, self._vector.own_buffers
        self.embeddings = [each.name for each in parameters_in(self._parts) if isinstance(each.owner, EMBEDDINGS)]
        found = any(isinstance(each, EMBEDDINGS) for each in module.modules())
        self.takes_integers = found if takes_integers is None else takes_integers
        parts, weights = list(self._parts.values()), loss_weights or {}
        self._calls = Calls(parts, self.loss, self._name, seed, autocast, compile, weights)
        self._gradients = Gradients(self._vector, self._calls, self._name, micro_batches)
        self._placed = self
        self._frozen: Sequence[str] = ()
        self._loan: Loan | None = None

    def _attach(self) -> None:
        """Take over the module, unless it is this model's already."""
        if self._loan is None or not self._loan.active:
            self._loan, self._placed = Loan(self._parts, self._others, self._tables, self._settle), self
            self._gradients.attach(self._loan)
            self._vector.attach()
            self._place()
            self._freeze()

    def _begin(self) -> None:
        """Begin to compute a gradient."""
        self._attach()
        self._state.begin()
        self._tables.begin(self._calls.device)

    def _place(self) -> None:
        """Set the device to that of the parameters."""
        first = self._vector.parameters[0]
        self._calls.begin(first.device)
        self._tensors = TensorConverter(first.dtype, first.device)

    def _settle(self) -> None:
        """Give the module the statistics of the vector, and what it has changed itself on another device."""
        self._vector.load_statistics()
        if self._placed is not self:
            self._state.load(self._placed._state.buffers() | self._placed._state.private())
            self._placed = self

    @property
    def parameters(self) -> Any:
        """The flat vector, of which the module's parameters are views, from the first use until `finish`."""
        self._attach()
        return self._vector.array

    @parameters.setter
    def parameters(self, vector: Any) -> None:
        self._attach()
        self._vector.replace(vector)

    def on(self, xp: Any) -> TorchModel:
        self._attach()
        same = TorchModel(*copied(self.module, self.loss, self._frozen), **self._settings)
        same.freeze(self._frozen)
        same._tables.model = self
        same._attach()
        same._vector.move(xp)
        for part in same._others.values():
            part.to(same._vector.parameters[0].device)
        same._place()
        self._placed = same
        return same

    def freeze(self, names: Sequence[str]) -> None:
        """Let PyTorch compute no gradients of these parameters until training is over."""
        self._frozen = names
        if self._loan is not None and self._loan.active:
            self._freeze()

    def _freeze(self) -> None:
        for tensor, parameter in zip(self.layout, self._vector.parameters, strict=False):
            parameter.requires_grad_(tensor.name not in self._frozen)

    # Gradients.

    def loss_and_gradient(self, batch: Batch) -> tuple[float, Any]:
        """Return the mean loss over the batch and its gradient.

        Raises
        ------
        ModelError
            The module or the loss raised an error, the loss has several elements, or a parameter has been replaced.
        """
        self._begin()
        with model_errors(self._name):
            self._targets = self._tensors.of(batch.targets, "targets")
            loss = self._gradients.compute(batch, self._tensors.of(batch.inputs, "inputs"), self._targets)
        self._tables.settle()
        return loss, self._vector.gradient

    def wanted(self, batch: Batch) -> Sequence[Wanted] | None:
        """Return what the module's method ``lookups``, if it has one, says of a batch's inputs; ModelError if it fails.

        It returns the ids by the paths of the embeddings that look them up, a mapping or pairs, in their order.
        """
        return self._tables.wanted(self.module, batch.inputs)

    def loss_sums(self, loss: float, batch: Batch) -> tuple[float, float]:
        return losses.sums(self.loss, loss, self._targets, batch.total, batch.own_weight)

    def report_final(self, take: GradientObserver | None) -> None:
        """Report parameter by parameter, for undivided batches on the CPU."""
        self._gradients.progress.take = take

    # Evaluation.

    def evaluate(self, batch: Batch) -> Evaluation:
        """Return the evaluation of a batch; ModelError if the module or the loss raised an error."""
        return self._tested(self._evaluate, batch)

    def outputs(self, batch: Batch) -> np.ndarray:
        """Return the outputs for a batch; ModelError if the module raised an error, or didn't return a tensor."""
        return self._tested(self._outputs_of, batch)

    def _tested(self, compute: Callable[[Batch], T], batch: Batch) -> T:
        """Return the result of a function of a batch, with the module in evaluation mode."""
        self._attach()
        self._calls.set_mode(training=False)
        self._vector.load_statistics()
        with model_errors(self._name), torch.no_grad():
            return compute(batch)

    def _outputs_of(self, batch: Batch) -> np.ndarray:
        outputs = self._forward(batch.inputs)
        if not isinstance(outputs, torch.Tensor):
            raise ModelError(f"{self._name} returned {kind_of(outputs)}, expected a tensor of outputs")
        return as_array(outputs)

    def _evaluate(self, batch: Batch) -> Evaluation:
        outputs = self._forward(batch.inputs)
        return self._figures(outputs, self._tensors.of(batch.targets, "targets"), batch)

    def _forward(self, inputs: Any) -> Any:
        with self._calls.precision():
            return self._calls.outputs(self._tensors.of(inputs, "inputs"))

    def _figures(self, outputs: Any, targets: Any, batch: Batch) -> Evaluation:
        with self._calls.precision():
            loss = self._calls.loss(outputs, targets).item()
        found = losses.evaluation(self.loss, loss, outputs, targets, batch.total, batch.own_weight)
        return found._replace(terms=[float(term) * (found.weight or 0.0) for term in self._calls.terms.values()])

    @property
    def terms(self) -> Sequence[str]:
        """The names of the terms of the last loss, if it has some."""
        return tuple(self._placed._calls.terms)

    def rehearse(self, batch: Batch) -> list[str]:
        with as_usage_errors(), self.unchanged() as before:
            self.loss_and_gradient(batch)
            self.evaluate(batch)
            named = zip(self.layout, self._vector.parameters, strict=False)
            return [tensor.name for tensor, parameter in named if before.changed(parameter)]

    @contextmanager
    def unchanged(self) -> Iterator[ModuleSnapshot]:
        model = self._placed
        model._attach()
        before = ModuleSnapshot({**model._parts, **model._others})
        try:
            yield before
        finally:
            before.restore()
            model._calls.begin(model._calls.device)

    def scoring(self, several_labels: bool) -> Scoring:
        return losses.scoring(self.loss)

    # State outside the vector.

    def constants(self) -> dict[str, np.ndarray]:
        return self._state.constants()

    def load_constants(self, constants: Any) -> None:
        self._state.load(constants, changed=False)

    def buffers(self) -> dict[str, np.ndarray]:
        return self._placed._state.buffers()

    def load_buffers(self, buffers: Any) -> None:
        self._placed._state.load(buffers)

    def state(self) -> dict[str, np.ndarray]:
        """Return the tensors that no export has, while training only those that have changed."""
        return self._placed._state.private()

    def load_state(self, state: Any) -> None:
        self._placed._state.load(state)

    def finish(self) -> None:
        """Give the module back to its owner; the next use takes it over again."""
        if self._loan is not None:
            self._loan.end()
