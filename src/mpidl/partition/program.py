"""What a rank does for batches of one size, in order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mpidl.nn.workspaces import Call, Pass
from mpidl.parameters.box import Box, strides
from mpidl.partition.exchange import Exchange, Memory
from mpidl.partition.group import Group
from mpidl.partition.local import Local, Movement, Task
from mpidl.partition.plan import Plan, Step
from mpidl.partition.tensors import Tensors


class Program:
    """A forward and a backward pass over a number of samples: layers, and exchanges between fixed arrays.

    A value is sent as soon as it is there, and waited for where it is needed. A pass ends when all that was sent is on
    its way.

    Parameters
    ----------
    plan : Plan
    local : Local
        The rank's part of the plan.
    tensors : Tensors
        Bound to the group.
    work : Pass
        The arrays.
    samples : int
        Number of samples of the whole batch.
    group : Group
    xp
        NumPy or CuPy.
    memory : Memory
        For messages; programs for other numbers of samples may have the same, since only one is under way.

    Attributes
    ----------
    work : Pass
    """

    def __init__(
        self,
        plan: Plan,
        local: Local,
        tensors: Tensors,
        work: Pass,
        samples: int,
        group: Group,
        xp: Any,
        memory: Memory,
    ) -> None:
        self.work = work
        self._samples, self._group, self._xp, self._memory = samples, group, xp, memory
        tasks = list(zip(local.tasks, work.calls, strict=True))
        arriving = (*local.arrivals, *(move for task in local.tasks for move in task.arrivals))
        # What departs here, too, knows whether its gradient comes first.
        moves = {move.tag: move for move in (*arriving, *(move for task in local.tasks for move in task.departures))}
        there = {tag: self._exchange(move) for tag, move in moves.items()}
        back = {tag: self._exchange(move, back=True) for tag, move in moves.items()}
        gathers, scatters = ([each for step in steps for each in step] for steps in (tensors.gathers, tensors.scatters))

        self._forward: list[Callable[[], Any]] = [each.start for each in gathers]
        for task, call in tasks:
            self._prepare(call, task, plan.steps[task.step])
            self._forward += [there[move.tag].finish for move in task.arrivals]
            self._forward += [each.finish for each in tensors.gathers[task.step]]
            if len(call.outputs):
                self._forward.append(call.forward)
            self._forward += [there[move.tag].start for move in task.departures]
        self._forward += [there[move.tag].finish for move in local.arrivals]
        self._forward += [each.complete for each in (*gathers, *there.values())]

        self._backward: list[Callable[[], Any]] = [back[move.tag].start for move in local.arrivals]
        for task, call in reversed(tasks):
            self._backward += [back[move.tag].finish for move in reversed(task.departures)]
            if len(call.outputs):
                self._backward.append(call.backward)
            else:
                self._backward += [partial(gradient.fill, 0) for gradient in call.workspace.gradients.values()]
            self._backward += [back[move.tag].start for move in task.arrivals]
            self._backward += [each.start for each in tensors.scatters[task.step]]
        self._backward += [each.finish for each in scatters]
        self._backward += [each.complete for each in (*scatters, *back.values())]

        answers = [] if local.answer is None else [self._exchange(local.answer)]
        self._answer = [step for each in answers for step in (each.start, each.finish, each.complete)]
        self._exchanges = [*there.values(), *back.values(), *answers]

    def _exchange(self, move: Movement, back: bool = False) -> Exchange:
        """Return the rank's side of a movement of a value, or of its gradient back."""
        transfer, arrays = move.transfer(self._samples), self.work.gradients if back else self.work.values
        rank, group, xp = self._group.rank, self._group, self._xp
        source = [arrays[move.departs]] if move.departs is not None and transfer.source[rank] else []
        target = [arrays[move.arrives]] if move.arrives is not None and transfer.target[rank] else []
        if back:
            adjoint, adds = transfer.adjoint, not move.first
            return Exchange(adjoint, group, xp, target, source, 2 * move.tag + 1, self._memory, adds)
        return Exchange(transfer, group, xp, source, target, 2 * move.tag, self._memory)

    def _prepare(self, call: Call, task: Task, step: Step) -> None:
        """Let a layer know where its outputs lie in those of the whole layer, and who shares its statistics."""
        part = task.part.of(self._samples)
        if part is None:
            return
        shape = (self._samples, *task.shape)
        call.workspace.first, call.workspace.strides = part.offset(Box.whole(shape)), strides(shape)
        if call.layer.statistics:
            call.workspace.group = self._sharers(step, call.layer.statistics[0])

    def _sharers(self, step: Step, statistic: str) -> Group | None:
        """Return the ranks with samples that have the same part of a layer's statistics; None if no other has."""
        own = step.tensors[self._group.rank][statistic]
        ranks = [
            rank
            for rank, (tensors, part) in enumerate(zip(step.tensors, step.given, strict=True))
            if tensors.get(statistic) == own and part is not None and part.of(self._samples) is not None
        ]
        return self._group.subgroup(ranks) if len(ranks) > 1 else None

    def forward(self, training: bool) -> None:
        """Compute the values; the calls have their parts of the inputs."""
        for call in self.work.calls:
            call.workspace.training = training
        for each in self._forward:
            each()

    def backward(self) -> None:
        """Compute the gradients from that with respect to the outputs."""
        for each in self._backward:
            each()

    def answer(self) -> None:
        """Bring the outputs to rank 0."""
        for each in self._answer:
            each()

    def free(self) -> None:
        """Give back what the exchanges need."""
        for each in self._exchanges:
            each.free()
