"""The tensors that a rank computes with, and the sums of their gradients over micro-batches."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

from mpidl.nn.workspaces import Call
from mpidl.parameters.layout import Slice
from mpidl.parameters.ranges import Box
from mpidl.partition.group import RankGroup
from mpidl.partition.persistent_transfer import MessageBuffers, PersistentTransfer
from mpidl.partition.plan import Plan
from mpidl.partition.transfer import Transfer


class Tensor(NamedTuple):
    """A tensor of a step, as ranks hold and take it.

    Attributes
    ----------
    step, key : int, str
        Index of the step, and the layer's name of the tensor.
    held, box : list of Slice, Box or None
        The parts that this rank holds, and the part that its layer takes.
    transfer : Transfer
        From the parts that all ranks hold to those that they take.
    """

    step: int
    key: str
    held: list[Slice]
    box: Box | None
    transfer: Transfer
    tag: int


class RankTensors:
    """A rank's tensors; their transfers take two tags each, from `tag` on.

    Attributes
    ----------
    parameters, gradients : list of dict of str to array
        For each step, the tensors of the rank's layer: views of the vectors, or separate arrays.
    """

    def __init__(self, plan: Plan, rank: int, xp: Any, dtype: str, tag: int) -> None:
        self._xp, self._dtype, self._origin = xp, dtype, plan.slices[rank].start
        self._tensors = list(_tensors(plan, rank, tag))
        self._resting = [each.transfer.rests(rank) for each in self._tensors]
        self.parameters: list[dict[str, Any]] = [{} for _ in plan.steps]
        self.gradients: list[dict[str, Any]] = [{} for _ in plan.steps]
        self.gathers: list[list[PersistentTransfer]] = [[] for _ in plan.steps]
        self.scatters: list[list[PersistentTransfer]] = [[] for _ in plan.steps]
        self._memory = MessageBuffers(xp)

    @property
    def nbytes(self) -> int:
        """Bytes of the separate arrays."""
        moved = [each.box for each, rests in zip(self._tensors, self._resting, strict=True) if not rests]
        return 2 * sum(box.size for box in moved if box is not None) * int(self._xp.dtype(self._dtype).itemsize)

    def bind(self, vector: Any, gradient: Any, group: RankGroup) -> None:
        """Take the tensors from the rank's vector (size,), and return their gradients to another one."""
        self.free()
        for each, rests in zip(self._tensors, self._resting, strict=True):
            held = [self._views(vector, each), self._views(gradient, each)]
            own = self.parameters[each.step], self.gradients[each.step]
            if rests:
                for tensors, views in zip(own, held, strict=True):
                    tensors.update((each.key, view) for view in views)
                continue
            for tensors in own:
                if each.box is not None and each.key not in tensors:
                    tensors[each.key] = self._xp.empty(each.box.shape, self._dtype)
            taken = [[tensors[each.key]] if each.box is not None else [] for tensors in own]
            there = PersistentTransfer(each.transfer, group, self._xp, held[0], taken[0], each.tag, self._memory)
            adjoint = each.transfer.adjoint
            back = PersistentTransfer(adjoint, group, self._xp, taken[1], held[1], each.tag + 1, self._memory)
            self.gathers[each.step].append(there)
            self.scatters[each.step].append(back)

    def free(self) -> None:
        """Free the exchanges."""
        for step in (*self.gathers, *self.scatters):
            for each in step:
                each.free()
            step.clear()

    def _views(self, vector: Any, tensor: Tensor) -> list[Any]:
        return [
            vector[piece.start - self._origin : piece.stop - self._origin].reshape(piece.shape) for piece in tensor.held
        ]


def _tensors(plan: Plan, rank: int, tag: int) -> Iterator[Tensor]:
    stops = [each.stop for each in plan.slices]
    for index, step in enumerate(plan.steps):
        for key in dict.fromkeys(key for tensors in step.tensors for key in tensors):
            held: list[list[Slice]] = [[] for _ in stops]
            for piece in plan.layout.of(f"{step.name}/{key}"):
                held[bisect_right(stops, piece.start)].append(piece)
            source = [tuple(piece.box for piece in pieces) for pieces in held]
            transfer = Transfer(source, [tensors.get(key) for tensors in step.tensors])
            yield Tensor(index, key, held[rank], step.tensors[rank].get(key), transfer, tag)
            tag += 2


class GradientSums:
    """Sums of the gradients of micro-batches, one after another.

    A layer writes the gradients of the first micro-batch into the sums, and those of the others into memory shared by
    all layers. For each step of the plan, `tensors` are the boxes of the rank's tensors, and `totals` their sums.
    """

    def __init__(
        self, tensors: Sequence[dict[str, Box]], totals: Sequence[dict[str, Any]], xp: Any, dtype: str
    ) -> None:
        self._shapes = [{name: box.shape for name, box in own.items()} for own in tensors]
        self._totals, self._xp, self._dtype = totals, xp, dtype
        self._summands: list[dict[str, Any]] = []
        self._share, self._first = 1.0, True

    @property
    def nbytes(self) -> int:
        """Bytes of memory for more than one micro-batch."""
        return self._size * int(self._xp.dtype(self._dtype).itemsize)

    @property
    def _size(self) -> int:
        return max((sum(map(prod, shapes.values())) for shapes in self._shapes), default=0)

    def begin(self, share: float, first: bool) -> None:
        """Begin a micro-batch.

        Parameters
        ----------
        share : float
            Its share of the minibatch's samples, by which the gradients of statistics are weighted. Those of parameters
            already are: they are gradients of a part of the mean loss.
        first : bool
            Whether it is the first of a minibatch.
        """
        self._share, self._first = share, first

    def add(self, step: int, call: Call, compute: Callable[[], None]) -> None:
        """Add the gradients of a step's layer, which `compute` (a method of `call`) computes, to the sums."""
        totals = self._totals[step]
        if not len(call.outputs):
            if self._first:
                for total in totals.values():
                    total.fill(0)
            return
        own = call.workspace.gradients = totals if self._first else self._summand(step)
        compute()
        if self._share != 1:
            for name in call.layer.statistics:
                own[name] *= self._share
        if not self._first:
            for name, total in totals.items():
                total += own[name]

    def _summand(self, step: int) -> dict[str, Any]:
        if not self._summands:
            memory = self._xp.empty(self._size, self._dtype)
            for shapes in self._shapes:
                start, own = 0, {}
                for name, shape in shapes.items():
                    own[name] = memory[start : start + prod(shape)].reshape(shape)
                    start += prod(shape)
                self._summands.append(own)
        return self._summands[step]
