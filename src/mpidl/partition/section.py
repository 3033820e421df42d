"""What a rank has and computes of a model of consecutive modules."""

from __future__ import annotations

from abc import abstractmethod
from importlib import import_module
from typing import Any, Literal

import numpy as np

from mpidl.data.batch import Batch
from mpidl.nn.model import CompleteModel, Evaluation
from mpidl.parameters.layout import Layout
from mpidl.parameters.ranges import Range
from mpidl.partition.between_stages import Receiver, Sender
from mpidl.partition.group import Group
from mpidl.partition.pipeline import MicroBatch, Pipeline
from mpidl.partition.schedules.instructions import Backward, BackwardInputs, BackwardWeights, Forward
from mpidl.partition.sections import Sections

#: Tags of values, gradients, outputs and figures; the shapes of the first ones have the next.
VALUES, GRADIENTS, OUTPUTS, FIGURES = 0, 2, 4, 6

#: Which gradients a way back is for.
Part = Literal["both", "inputs", "weights"]


class Section(CompleteModel):
    """What one rank of a replica has and computes of a model of consecutive modules: a stage.

    It has its own modules' parameters, receives the values of the stage before, and sends gradients back. As with
    `CutNetwork`, losses, gradients and evaluations are work of all ranks of a group, which are given the same batches;
    their inputs and targets are arrays whose first axis is that of the samples.

    Parameters
    ----------
    whole : CompleteModel
        The whole model: it has the initial values.
    plan : Sections
    rank : int
        The rank's number in its replica, and that of its stage.
    schedule : str
        A name in `mpidl.partition.schedules.SCHEDULES`.
    micro_batches : int
        Into how many micro-batches a minibatch is divided. A loss is a mean over its samples: that of a minibatch is
        the mean over its micro-batches. What a module makes of several samples, as batch normalisation does, it makes
        of those of a micro-batch.

    Attributes
    ----------
    slice : Range
        What the rank holds of the whole vector.

    Raises
    ------
    UsageError
        If there is no such schedule, or no micro-batch.
    """

    def __init__(self, whole: CompleteModel, plan: Sections, rank: int, *, schedule: str, micro_batches: int) -> None:
        self.plan, self._whole, self._rank = plan, whole, rank
        self.layout, self.slice, self.statistics = plan.layout, plan.slices[rank], plan.statistics
        self.dtype, self.takes_integers, self.aliases = whole.dtype, whole.takes_integers, whole.aliases
        self.own = whole.own
        self._pipeline = Pipeline(schedule, micro_batches, rank, plan.stages)
        self._first, self._last = rank == 0, rank == plan.stages - 1
        self._group: Group | None = None
        self._ends: dict[str, Any] = {}

    # What a framework does with a stage.

    @abstractmethod
    def _begin(self, batch: Batch) -> None:
        """Make ready for the gradient of a minibatch."""

    @abstractmethod
    def _compute(self, inputs: Any, own: MicroBatch) -> np.ndarray | None:
        """Return the stage's outputs (n, ...), and keep what the way back needs; the last stage needn't return them."""

    @abstractmethod
    def _loss(self, targets: Any, own: MicroBatch) -> float:
        """Return the mean loss of the outputs that the last stage has computed last, times `own.share`; keep it."""

    @abstractmethod
    def _back(self, gradient: np.ndarray | None, own: MicroBatch, part: Part) -> np.ndarray | None:
        """Add to the gradient what a micro-batch gives, and return that with respect to the stage's inputs.

        `gradient` is that with respect to the outputs: None on the last stage, and where `part` is "weights". Stage 0
        returns None.
        """

    @abstractmethod
    def _end(self) -> Any:
        """Return the gradient (slice.size,)."""

    @abstractmethod
    def _test(self, inputs: Any) -> Any:
        """Return the stage's outputs as the model is tested."""

    @abstractmethod
    def _host(self, outputs: Any) -> np.ndarray:
        """Return such outputs as an array (n, ...) of the model's dtype."""

    @abstractmethod
    def _judge(self, batch: Batch, outputs: Any) -> Evaluation:
        """Return what `evaluate` does, from the last stage's outputs."""

    # What is the same for all.

    def bind(self, group: Group) -> None:
        own = self._rank, self.plan.partitions
        if (group.rank, group.size) != own:
            raise ValueError(f"rank {own[0]} of {own[1]}, the group's is {group.rank} of {group.size}")
        self.unbind()
        self._group, last, dtype = group, self.plan.stages - 1, self.dtype
        if not self._last:
            self._ends["values to"] = Sender(group, self._rank + 1, VALUES)
            self._ends["gradients from"] = Receiver(group, self._rank + 1, GRADIENTS, dtype)
        if not self._first:
            self._ends["values from"] = Receiver(group, self._rank - 1, VALUES, dtype)
            self._ends["gradients to"] = Sender(group, self._rank - 1, GRADIENTS)
        if self._last and not self._first:
            self._ends["outputs to"], self._ends["figures to"] = Sender(group, 0, OUTPUTS), Sender(group, 0, FIGURES)
        if self._first and not self._last:
            self._ends["outputs from"] = Receiver(group, last, OUTPUTS, dtype)
            self._ends["figures from"] = Receiver(group, last, FIGURES, "float64")

    def unbind(self) -> None:
        for each in self._ends.values():
            each.free()
        self._ends.clear()
        self._group = None

    def initial(self, whole: Range, layout: Layout | None = None) -> np.ndarray:
        return self._whole.initial(whole, self.layout if layout is None else layout)

    def accuracy_name(self, several_labels: bool) -> str:
        return self._whole.accuracy_name(several_labels)

    def loss_and_gradient(self, batch: Batch) -> tuple[float, Any]:
        """Return the mean loss over the batch, on all ranks, and the gradient of what the rank holds."""
        group = self._bound()
        self._begin(batch)
        loss = 0.0
        for instruction, own in self._pipeline.order(len(batch.inputs)):
            match instruction:
                case Forward():
                    loss += self._forward(batch, own)
                case Backward():
                    self._backward(own, "both")
                case BackwardInputs():
                    self._backward(own, "inputs")
                case BackwardWeights():
                    self._back(None, own, "weights")
        total = np.array([loss])
        group.sum(total)
        return float(total[0]), self._end()

    def evaluate(self, batch: Batch) -> Evaluation:
        """Return what the whole batch's is on rank 0; zeros, and no outputs, on others, so that a sum is right."""
        outputs = self._through(batch)
        if self._last:
            loss, correct, _ = self._judge(batch, outputs)
            if self._first:
                return Evaluation(loss, correct, self._host(outputs))
            self._ends["figures to"].send(np.array([[loss, correct]]))
        answer = self._answer(batch, outputs)
        if not self._first:
            return Evaluation(0.0, 0)
        loss, correct = self._ends["figures from"].receive(1)[0].tolist()
        return Evaluation(loss, int(correct) if correct.is_integer() else correct, answer)

    def outputs(self, batch: Batch) -> Any:
        """Return the outputs for the samples of a batch on rank 0, None on others; see `CompleteModel.outputs`."""
        return self._answer(batch, self._through(batch))

    def _answer(self, batch: Batch, outputs: Any) -> np.ndarray | None:
        """Bring the last stage's outputs to rank 0."""
        if self._last and self._first:
            return self._host(outputs)
        if self._last:
            self._ends["outputs to"].send(self._host(outputs))
        if not self._first:
            return None
        found: np.ndarray = self._ends["outputs from"].receive(len(batch.inputs))
        return found

    def _bound(self) -> Group:
        if self._group is None:
            raise RuntimeError("a section computes while it is bound to a group")
        return self._group

    def _forward(self, batch: Batch, own: MicroBatch) -> float:
        samples = slice(*own.samples)
        inputs = batch.inputs[samples] if self._first else self._receive("values from", own)
        outputs = self._compute(inputs, own)
        if self._last:
            return self._loss(batch.targets[samples], own)
        self._ends["values to"].send(outputs, own.slot)
        return 0.0

    def _backward(self, own: MicroBatch, part: Part) -> None:
        given = self._back(None if self._last else self._receive("gradients from", own), own, part)
        if not self._first:
            self._ends["gradients to"].send(given, own.slot)

    def _receive(self, end: str, own: MicroBatch) -> np.ndarray:
        found: np.ndarray = self._ends[end].receive(own.samples.size, own.slot)
        return found

    def _through(self, batch: Batch) -> Any:
        """Pass a batch as a whole through the stages, and return what this one gives."""
        self._bound()
        inputs = batch.inputs if self._first else self._ends["values from"].receive(len(batch.inputs))
        outputs = self._test(inputs)
        if not self._last:
            self._ends["values to"].send(self._host(outputs))
        return outputs


def section_of(model: CompleteModel, plan: Sections, rank: int, *, schedule: str, micro_batches: int) -> Section:
    """Return what a rank has and computes of a model that `sections_of` has cut; see `Section`."""
    make = import_module(model.by_stages).section
    found: Section = make(model, plan, rank, schedule=schedule, micro_batches=micro_batches)
    return found
