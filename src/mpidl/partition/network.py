"""A rank's part of a network that is cut over the ranks of a replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpidl.data.batch import Batch
from mpidl.nn.layers.layer import Workspace
from mpidl.nn.model import CompleteModel, Evaluation, LayerSummary
from mpidl.nn.network import Network
from mpidl.nn.workspaces import Passes
from mpidl.parameters.layout import Layout
from mpidl.parameters.ranges import Range
from mpidl.partition.exchange import Memory
from mpidl.partition.group import Group
from mpidl.partition.local import Local
from mpidl.partition.plan import Plan
from mpidl.partition.program import Program
from mpidl.partition.tensors import Tensors


class CutNetwork(CompleteModel):
    """What one rank of a replica has and computes of a network (`Network`) that is cut.

    Losses, gradients and evaluations are work of all ranks of a group, each of which has its own `CutNetwork`, made
    from the same network and plan; all are given the same batch. Ranges, as in `layout`, `statistics` and `initial`,
    are those of the whole vector; `parameters` and gradients are the rank's part of it.

    Parameters
    ----------
    network : Network
        The whole network, of which nothing is allocated.
    plan : Plan
    rank : int
        The rank's number in its replica.

    Attributes
    ----------
    plan : Plan
    slice : Range
        What the rank holds of the whole vector.
    """

    movable = True

    def __init__(self, network: Network, plan: Plan, rank: int) -> None:
        self._network, self.plan, self._rank = network, plan, rank
        self.layout, self.dtype, self.takes_integers = plan.layout, network.dtype, network.takes_integers
        self.slice = plan.slices[rank]
        names = network.graph.names
        self._layers = [names.index(step.name) for step in plan.steps]
        self._left_alone = {
            f"{name}/{key}" for name, layer in zip(names, network.layers, strict=True) for key in layer.statistics
        }
        self.statistics = [piece.range for piece in plan.layout if piece.name in self._left_alone]
        self._weights = self._own({name for name in plan.layout.shapes if name.endswith("/weight")})
        self.freeze(())
        as_is = {step for step, layer in enumerate(self._layers) if network.takes_as_is(layer)}
        shapes = [network.graph.shapes[layer + 1] for layer in self._layers]
        self._local = local = Local(plan, rank, shapes, as_is)
        self._tensors = Tensors(plan, rank, network.xp, self.dtype.name, 2 * local.tags)
        self._passes = Passes(
            network.xp, self.dtype.name, local.values, [task.node for task in local.tasks], self._workspace
        )
        self._parameters: Any = None
        self._gradient: Any = None
        self._group: Group | None = None
        self._programs: dict[int, Program] = {}
        self._memory = Memory(network.xp)
        self._number = 0

    @property
    def parameters(self) -> Any:
        """What the rank holds of the flat vector, (slice.size,), allocated and initialised at its first use.

        It may be written into, or replaced by another vector, with which the rank then computes.
        """
        if self._parameters is None:
            self._parameters = self._network.xp.asarray(self.initial(self.slice))
        return self._parameters

    @parameters.setter
    def parameters(self, vector: Any) -> None:
        self._free()
        self._parameters = vector

    def bind(self, group: Group) -> None:
        """Compute with the other ranks of a group, whose ranks are those of the plan, until `unbind`.

        Raises
        ------
        ValueError
            If it isn't the rank's group.
        """
        own = self._rank, self.plan.partitions
        if (group.rank, group.size) != own:
            raise ValueError(f"rank {own[0]} of {own[1]}, the group's is {group.rank} of {group.size}")
        self.unbind()
        self._group = group

    def unbind(self) -> None:
        """Give back what messages between the ranks need; arrays stay allocated."""
        self._free()
        self._group = None

    def freeze(self, names: Sequence[str]) -> None:
        """See `CompleteModel.freeze`: their gradient doesn't count for the norm that is clipped."""
        self._frozen = names
        self._trained = self._own(set(self.layout.shapes).difference(self._left_alone, names))

    def on(self, xp: Any) -> CutNetwork:
        """Return the rank's part for the arrays of another package, without parameters yet, bound to the same group."""
        made = CutNetwork(self._network.on(xp), self.plan, self._rank)
        made.freeze(self._frozen)
        if self._group is not None:
            made.bind(self._group)
        return made

    def initial(self, whole: Range, layout: Layout | None = None) -> np.ndarray:
        """Return the initial values of the parameters [start, stop) of the whole vector: those of the uncut network.

        Raises
        ------
        ValueError
            If the range isn't within the vector.
        """
        return self._network.initial(whole, self.layout if layout is None else layout)

    def loss_and_gradient(self, batch: Batch) -> tuple[float, Any]:
        """Return the mean loss over the batch, on all ranks, and the gradient of what the rank holds.

        Once the largest batch has been seen, no activations or tensors are allocated.

        Returns
        -------
        loss : float
            Mean over the batch: the same on all ranks.
        gradient : array (slice.size,)
            Gradient with respect to `parameters`; the next call overwrites it.

        Raises
        ------
        UsageError
            If the shapes don't fit.
        """
        program = self._forward(batch, training=True)
        assert self._group is not None
        loss = 0.0
        if (own := self._local.outputs) is not None:
            samples = len(batch.inputs)
            part = self._local.values[own].samples(samples)
            if part.size:
                outputs, gradient = program.work.values[own], program.work.gradients[own]
                loss = self._network.mean_loss(outputs, batch.targets[slice(*part)], gradient, samples)
        program.backward()
        regularisation = self._network.regularisation
        loss += regularisation.penalise(self._weights, self.parameters, self._gradient)
        sums = np.array([loss, regularisation.squared_norm(self._trained, self._gradient)])
        self._group.sum(sums)
        regularisation.clip_norm(self._trained, self._gradient, float(sums[1]))
        return float(sums[0]), self._gradient

    def evaluate(self, batch: Batch) -> Evaluation:
        """Return what the whole batch's is on rank 0; zeros, and no outputs, on others, so that a sum is right."""
        outputs = self.outputs(batch)
        if outputs is None:
            return Evaluation(0.0, 0)
        assert self._local.whole is not None
        gradient = self._programs[len(outputs)].work.gradients[self._local.whole]
        return self._network.judge(batch, outputs, gradient)

    def outputs(self, batch: Batch) -> Any:
        """Return the outputs for the samples of a batch on rank 0, None on others; see `CompleteModel.outputs`."""
        program = self._forward(batch, training=False)
        program.answer()
        return None if self._rank or self._local.whole is None else program.work.values[self._local.whole]

    def predict(self, inputs: Any) -> Any:
        """Return the outputs (n, *output_shape) for inputs (n, *input_shape) as a new array; None on all but rank 0."""
        outputs = self.outputs(Batch(inputs, None))
        return None if outputs is None else outputs.copy()

    def check_data(self, input_shape: Sequence[int] | None, classes: int | None) -> None:
        """See `CompleteModel.check_data`."""
        self._network.check_data(input_shape, classes)

    def accuracy_name(self, several_labels: bool) -> str:
        """See `CompleteModel.accuracy_name`."""
        return self._network.accuracy_name(several_labels)

    def activation_bytes(self, samples: int) -> int:
        """Return the bytes that the rank needs besides its vectors for a batch, packed messages left out."""
        return self._passes.nbytes(samples) + self._tensors.nbytes

    def summaries(self) -> list[LayerSummary]:
        """See `CompleteModel.summaries`: those of the whole network."""
        return self._network.summaries()

    def _own(self, names: set[str]) -> list[Range]:
        """Return where some tensors lie in the rank's part of the vector."""
        held = [piece for piece in self.layout if piece.range.intersect(self.slice) and piece.name in names]
        return [piece.range.shift(-self.slice.start) for piece in held]

    def _forward(self, batch: Batch, training: bool) -> Program:
        """Compute the rank's values."""
        self._network.check_inputs(batch.inputs)
        program = self._program(len(batch.inputs))
        self._number = batch.number
        self._passes.feed(program.work, batch.inputs)
        program.forward(training)
        return program

    def _program(self, samples: int) -> Program:
        """Return what the rank does for a batch of so many samples, made at the first one and kept."""
        found = self._programs.get(samples)
        if found is not None:
            return found
        if self._group is None:
            raise RuntimeError("a cut network computes while it is bound to a group")
        xp = self._network.xp
        if self._gradient is None:
            self._gradient = xp.zeros(self.slice.size, self.dtype)
        if samples > max(self._programs, default=0):
            # All arrays for samples are allocated anew.
            self._free()
            self._tensors.bind(self.parameters, self._gradient, self._group)
        work = self._passes.take(samples)
        self._programs[samples] = found = Program(
            self.plan, self._local, self._tensors, work, samples, self._group, xp, self._memory
        )
        return found

    def _free(self) -> None:
        for program in self._programs.values():
            program.free()
        self._programs.clear()
        self._tensors.free()

    def _workspace(self, number: int, buffers: dict[str, Any]) -> Workspace:
        step = self._local.tasks[number].step
        tensors = self._tensors.parameters[step], self._tensors.gradients[step]
        return self._network.workspace(self._layers[step], *tensors, buffers, lambda: self._number)
