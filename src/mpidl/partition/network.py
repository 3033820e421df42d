"""A rank's part of a network that is cut over the ranks of a replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpidl.data.batch import Batch
from mpidl.nn.layers.workspace import Workspace
from mpidl.nn.model import Evaluation, LayerSummary
from mpidl.nn.network import Network
from mpidl.nn.workspaces import Passes
from mpidl.parameters.ranges import Range
from mpidl.partition.group import CutModel, RankGroup
from mpidl.partition.local import Local
from mpidl.partition.persistent_transfer import MessageBuffers
from mpidl.partition.plan import Plan
from mpidl.partition.program import Program
from mpidl.partition.schedules import Forward, MicroBatch, undivided
from mpidl.partition.tensors import GradientSums, RankTensors


class CutNetwork(CutModel):
    """The part of a cut `Network` that one rank of a replica holds and computes.

    Parameters
    ----------
    network : Network
        The whole network; nothing is allocated for it.
    rank : int
        The rank's number in its replica.
    schedule : str
        The order of micro-batches on the plan's stages, a name in `mpidl.partition.schedules.SCHEDULES`. The gradient
        does not depend on it.
    micro_batches : int
        Number of micro-batches in a minibatch. Batch normalisation takes the statistics of each micro-batch.

    Raises
    ------
    UsageError
        The schedule is unknown, or there are no micro-batches.
    """

    def __init__(
        self, network: Network, plan: Plan, rank: int, *, schedule: str = "one_forward_one_backward",
        micro_batches: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(network, plan, rank, schedule, micro_batches)
        self._network, self._schedule = network, schedule
        names = network.graph.names
        self._layers = [names.index(step.name) for step in plan.steps]
        self._untrained = {
            f"{name}/{key}" for name, layer in zip(names, network.layers, strict=True) for key in layer.statistics
        }
        self.statistics = [piece.range for piece in plan.layout if piece.name in self._untrained]
        self._weights = self._own({name for name in plan.layout.shapes if name.endswith("/weight")})
        self.freeze(())
        takes = zip(network.layers, network.graph.operands, strict=True)
        unconverted = [layer.takes_integers and operands == (0,) for layer, operands in takes]
        as_is = {step for step, layer in enumerate(self._layers) if unconverted[layer]}
        shapes = [network.graph.shapes[layer + 1] for layer in self._layers]
        self._local = local = Local(plan, rank, shapes, as_is)
        self._tensors = RankTensors(plan, rank, network.xp, self.dtype.name, 2 * local.tags)
        self._passes = Passes(
            network.xp, self.dtype.name, local.values, [task.node for task in local.tasks], self._workspace
        )
        self._parameters: Any = None
        self._gradient: Any = None
        boxes = [step.tensors[rank] for step in plan.steps]
        self._sums = GradientSums(boxes, self._tensors.gradients, network.xp, self.dtype.name)
        self._programs: dict[tuple[int, int], Program] = {}
        self._memories: dict[int, MessageBuffers] = {}
        self._under_way: dict[int, Program] = {}
        self._largest, self._number = -1, 0

    @property
    def parameters(self) -> Any:
        """The rank's part of the flat vector, (slice.size,), allocated and initialised at its first use.

        It may be changed, or replaced by another vector.
        """
        if self._parameters is None:
            self._parameters = self._network.xp.asarray(self.initial(self.slice))
        return self._parameters

    @parameters.setter
    def parameters(self, vector: Any) -> None:
        self._free()
        self._parameters = vector

    def unbind(self) -> None:
        self._free()
        super().unbind()

    def freeze(self, names: Sequence[str]) -> None:
        """Exclude tensors from training, and from the norm that is clipped."""
        self._frozen = names
        self._trained = self._own(set(self.layout.shapes).difference(self._untrained, names))

    def on(self, xp: Any) -> CutNetwork:
        """Return the rank's part for another array package, without parameters, bound to the same group."""
        settings: Any = {"schedule": self._schedule, "micro_batches": self._pipeline.micro_batches}
        made = CutNetwork(self._network.on(xp), self.plan, self._rank, **settings)
        made.freeze(self._frozen)
        if self._group is not None:
            made.bind(self._group)
        return made

    def loss_and_gradient(self, batch: Batch) -> tuple[float, Any]:
        """Return the mean loss over the batch, on all ranks, and the rank's part of its gradient (slice.size,).

        The next call overwrites the gradient. After the largest batch, no activations or tensors are allocated.
        """
        samples = len(batch.inputs)
        group = self._begin(batch, self._pipeline.largest(samples))
        loss = 0.0
        for instruction, own in self._pipeline.order(samples):
            if isinstance(instruction, Forward):
                loss += self._loss(self._forward(batch, own, training=True), batch, own)
            elif instruction.part is not None:
                self._under_way[own.slot].backward(instruction.part, own.share, own.first, own.last)
        self._complete()
        regularisation = self._network.regularisation
        loss += regularisation.penalise(self._weights, self.parameters, self._gradient)
        sums = np.array([loss, regularisation.squared_norm(self._trained, self._gradient)])
        group.sum(sums)
        regularisation.clip_norm(self._trained, self._gradient, float(sums[1]))
        return float(sums[0]), self._gradient

    def evaluate(self, batch: Batch) -> Evaluation:
        """Return the whole batch's evaluation on rank 0, and zeros without outputs on other ranks."""
        work, whole = self._answer(batch).work, self._local.whole
        if self._rank or whole is None:
            return Evaluation(0.0, 0)
        return self._network.loss.evaluate(self._network.xp, batch, work.values[whole], work.gradients[whole])

    def outputs(self, batch: Batch) -> Any:
        """Return the outputs for the samples of a batch on rank 0, and None on other ranks."""
        work, whole = self._answer(batch).work, self._local.whole
        return None if self._rank or whole is None else work.values[whole]

    def predict(self, inputs: Any) -> Any:
        """Return the outputs (n, *output_shape) for inputs (n, *input_shape) as a new array; None on all but rank 0."""
        outputs = self.outputs(Batch(inputs, None))
        return None if outputs is None else outputs.copy()

    def check_data(self, input_shape: Sequence[int] | None, classes: int | None) -> None:
        self._network.check_data(input_shape, classes)

    def activation_bytes(self, samples: int) -> int:
        """Return the bytes of a gradient on the rank besides its vectors and packed messages."""
        pipeline = self._pipeline
        sums = self._sums.nbytes if pipeline.micro_batches > 1 else 0
        return self._passes.nbytes(pipeline.largest(samples), pipeline.slots(samples)) + self._tensors.nbytes + sums

    def summaries(self) -> list[LayerSummary]:
        """Return the summaries of the whole network's layers."""
        return self._network.summaries()

    def _own(self, names: set[str]) -> list[Range]:
        """Return the ranges of some tensors in the rank's part of the vector."""
        held = [piece for piece in self.layout if piece.range.intersect(self.slice) and piece.name in names]
        return [piece.range.shift(-self.slice.start) for piece in held]

    def _begin(self, batch: Batch, samples: int) -> RankGroup:
        """Prepare for a batch whose micro-batches have at most `samples` samples, and return the group."""
        self._network.check_inputs(batch.inputs)
        group, self._number = self._bound(), batch.number
        if self._gradient is None:
            self._gradient = self._network.xp.zeros(self.slice.size, self.dtype)
        if samples > self._largest:
            # All arrays for samples are reallocated.
            self._complete()
            self._free()
            self._tensors.bind(self.parameters, self._gradient, group)
            self._passes.take(samples)
            self._largest = samples
        return group

    def _complete(self) -> None:
        """Wait until all messages of the passes have been sent."""
        for program in self._under_way.values():
            program.complete()
        self._under_way.clear()

    def _forward(self, batch: Batch, own: MicroBatch, training: bool) -> Program:
        """Compute the rank's values for a micro-batch."""
        if own.slot in self._under_way:
            self._under_way[own.slot].complete()
        program = self._under_way[own.slot] = self._program(own.samples.size, own.slot)
        self._passes.feed(program.work, batch.inputs[slice(*own.samples)])
        program.forward(training, own.samples.start, own.first)
        return program

    def _loss(self, program: Program, batch: Batch, own: MicroBatch) -> float:
        """Return what the rank's samples add to the minibatch's mean loss, and compute the gradient of the outputs."""
        if (index := self._local.outputs) is None:
            return 0.0
        part = self._local.values[index].samples(own.samples.size).shift(own.samples.start)
        if not part.size:
            return 0.0
        outputs, gradient = program.work.values[index], program.work.gradients[index]
        targets = batch.targets[slice(*part)]
        return self._network.loss.mean(self._network.xp, outputs, targets, gradient, len(batch.inputs))

    def _answer(self, batch: Batch) -> Program:
        """Compute the outputs for an undivided batch, and send them to rank 0."""
        samples = len(batch.inputs)
        self._begin(batch, samples)
        program = self._forward(batch, undivided(samples), training=False)
        program.answer()
        self._complete()
        return program

    def _program(self, samples: int, slot: int) -> Program:
        """Return the rank's program for this number of samples, made once."""
        if (samples, slot) not in self._programs:
            work, xp, group = self._passes.take(samples, slot), self._network.xp, self._bound()
            memory = self._memories.setdefault(slot, MessageBuffers(xp))
            self._programs[samples, slot] = Program(
                self.plan, self._local, self._tensors, self._sums, work, samples, group, xp, memory
            )
        return self._programs[samples, slot]

    def _free(self) -> None:
        for program in self._programs.values():
            program.free()
        self._programs.clear()
        self._under_way.clear()
        self._tensors.free()
        self._largest = -1

    def _workspace(self, number: int, buffers: dict[str, Any]) -> Workspace:
        step = self._local.tasks[number].step
        tensors = self._tensors.parameters[step], self._tensors.gradients[step]
        return self._network.workspace(self._layers[step], *tensors, buffers, lambda: self._number)
