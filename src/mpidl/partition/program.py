"""The order of computations and messages of a rank, for batches of one size."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mpidl.nn.workspaces import Call, Pass
from mpidl.parameters.ranges import Box, Range, strides
from mpidl.partition.group import RankGroup
from mpidl.partition.local import Local, LocalStep, Movement, interior
from mpidl.partition.persistent_transfer import MessageBuffers, PersistentTransfer
from mpidl.partition.plan import CutLayer, Plan
from mpidl.partition.schedules import BackwardPart
from mpidl.partition.tensors import GradientSums, RankTensors


class Program:
    """A forward and a backward pass over a number of samples: layers, and exchanges between fixed arrays.

    A value is sent as soon as it is computed, and received where it is needed. Messages may be in flight when a pass
    ends, until `complete`.

    Parameters
    ----------
    local : Local
        The rank's part of the plan.
    tensors : RankTensors
        Bound to the group.
    samples : int
        Number of samples of all ranks together.
    memory : MessageBuffers
        For messages; programs of the same slot share it, because only one of them runs at a time.
    """

    def __init__(
        self, plan: Plan, local: Local, tensors: RankTensors, sums: GradientSums, work: Pass, samples: int,
        group: RankGroup, xp: Any, memory: MessageBuffers,
    ) -> None:  # fmt: skip
        self.work, self._sums = work, sums
        self._samples, self._group, self._xp, self._memory = samples, group, xp, memory
        tasks = list(zip(local.tasks, work.calls, strict=True))
        arriving = (*local.arrivals, *(move for task in local.tasks for move in task.arrivals))
        # Departures override arrivals: they know whether their gradient comes first.
        moves = {move.tag: move for move in (*arriving, *(move for task in local.tasks for move in task.departures))}
        there = {tag: self._exchange(move) for tag, move in moves.items()}
        back = {tag: self._exchange(move, back=True) for tag, move in moves.items()}
        gathers, scatters = ([each for step in steps for each in step] for steps in (tensors.gathers, tensors.scatters))
        self._firsts = [self._prepare(call, task, plan.steps[task.step]) for task, call in tasks]

        def forward(gathering: bool) -> list[Callable[[], Any]]:
            found: list[Callable[[], Any]] = [each.start for each in gathers if gathering]
            for task, call in tasks:
                arriving = [there[move.tag] for move in task.arrivals]
                found += [each.finish for each in tensors.gathers[task.step] if gathering]
                if rows := self._interior(task, call):
                    # Rows that don't need the values of other ranks are computed while these travel.
                    (values,) = arriving
                    before, after = Range(0, rows.start), Range(rows.stop, call.outputs.shape[1])
                    found += [values.take_own, partial(call.forward_rows, rows), values.finish]
                    found += [partial(call.forward_rows, some) for some in (before, after) if some.size]
                    found.append(call.end_rows)
                else:
                    found += [each.finish for each in arriving]
                    if len(call.outputs):
                        found.append(call.forward)
                found += [there[move.tag].start for move in task.departures]
            return found + [there[move.tag].finish for move in local.arrivals]

        def backward(part: BackwardPart, last: bool) -> list[Callable[[], Any]]:
            inputs, weights = part != "weights", part != "inputs"
            scattering = last and weights
            # Gradients may arrive in the memory where values were packed.
            found: list[Callable[[], Any]] = [each.complete for each in there.values() if inputs]
            found += [back[move.tag].start for move in local.arrivals if inputs]
            for task, call in reversed(tasks):
                found += [back[move.tag].finish for move in reversed(task.departures) if inputs]
                compute = {"both": call.backward, "inputs": call.backward_inputs, "weights": call.backward_weights}[
                    part
                ]
                returning = [back[move.tag] for move in task.arrivals if inputs]
                if part == "both" and len(call.outputs) and any(each.sends for each in returning):
                    # The gradients for other ranks travel while those of the weights are computed.
                    found += [call.backward_inputs, *(each.start for each in returning)]
                    compute, returning = call.backward_weights, []
                if weights:
                    found.append(partial(sums.add, task.step, call, compute))
                elif len(call.outputs):
                    found.append(compute)
                found += [each.start for each in returning]
                found += [each.start for each in tensors.scatters[task.step] if scattering]
            return found + [each.finish for each in scatters if scattering]

        self._forward = {gathering: forward(gathering) for gathering in (True, False)}
        parts: tuple[BackwardPart, ...] = ("both", "inputs", "weights")
        self._backward = {(part, last): backward(part, last) for part in parts for last in (True, False)}
        self._complete = [each.complete for each in (*gathers, *there.values(), *scatters, *back.values())]

        answers = [] if local.answer is None else [self._exchange(local.answer)]
        self._answer = [step for each in answers for step in (each.start, each.finish, each.complete)]
        self._exchanges = [*there.values(), *back.values(), *answers]

    def _interior(self, task: LocalStep, call: Call) -> Range | None:
        """Return the rows that a task computes before its inputs arrive; None if it computes all rows at once."""
        if len(task.arrivals) != 1 or self._xp is not np or not len(call.outputs):
            return None
        rows = interior(call.layer, task.arrivals[0].transfer(self._samples), self._group.rank)
        return rows if rows.size else None

    def _exchange(self, move: Movement, back: bool = False) -> PersistentTransfer:
        """Return the rank's side of a movement of a value, or of its gradient back."""
        transfer, arrays = move.transfer(self._samples), self.work.gradients if back else self.work.values
        rank, group, xp = self._group.rank, self._group, self._xp
        source = [arrays[move.departs]] if move.departs is not None and transfer.source[rank] else []
        target = [arrays[move.arrives]] if move.arrives is not None and transfer.target[rank] else []
        if back:
            adjoint, adds = transfer.adjoint, not move.first
            return PersistentTransfer(adjoint, group, xp, target, source, 2 * move.tag + 1, self._memory, adds)
        return PersistentTransfer(transfer, group, xp, source, target, 2 * move.tag, self._memory)

    def _prepare(self, call: Call, task: LocalStep, step: CutLayer) -> int:
        """Set the position of a call's outputs within those of the whole layer, and the group for its statistics.

        Returns
        -------
        int
            The index of its first output.
        """
        part = task.part.of(self._samples)
        if part is None:
            return 0
        shape = (self._samples, *task.shape)
        call.workspace.first, call.workspace.strides = part.offset(Box.whole(shape)), strides(shape)
        if call.layer.statistics:
            call.workspace.group = self._sharers(step, call.layer.statistics[0])
        return call.workspace.first

    def _sharers(self, step: CutLayer, statistic: str) -> RankGroup | None:
        """Return the group of the ranks with samples and the same part of a layer's statistics; None for one rank."""
        own = step.tensors[self._group.rank][statistic]
        ranks = [
            rank
            for rank, (tensors, part) in enumerate(zip(step.tensors, step.given, strict=True))
            if tensors.get(statistic) == own and part is not None and part.of(self._samples) is not None
        ]
        return self._group.subgroup(ranks) if len(ranks) > 1 else None

    def forward(self, training: bool, start: int = 0, first: bool = True) -> None:
        """Compute the values, after the inputs have been set.

        Parameters
        ----------
        training : bool
            Whether gradients will be computed.
        start : int
            The number of the first sample in its minibatch.
        first : bool
            Whether to gather the parameters that ranks share, rather than to use those of the previous pass.
        """
        for call, origin in zip(self.work.calls, self._firsts, strict=True):
            workspace = call.workspace
            workspace.training = training
            if workspace.strides is not None:
                workspace.first = origin + start * workspace.strides[0]
        for each in self._forward[first]:
            each()

    def backward(self, part: BackwardPart = "both", share: float = 1.0, first: bool = True, last: bool = True) -> None:
        """Compute a part of the gradients of a micro-batch from that of the outputs; "weights" after "inputs".

        Those of values are sent to the ranks that need them. Those of parameters are added to `GradientSums`, and after
        the last micro-batch summed over the ranks that share the parameters.
        """
        self._sums.begin(share, first)
        for each in self._backward[part, last]:
            each()

    def complete(self) -> None:
        """Wait until all messages have been sent, so that arrays may change."""
        for each in self._complete:
            each()

    def answer(self) -> None:
        """Send the outputs to rank 0."""
        for each in self._answer:
            each()

    def free(self) -> None:
        """Free the exchanges."""
        for each in self._exchanges:
            each.free()
