"""A server's part in Sandblaster: it carries out the coordinator's operations, and accrues units."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpidl.algorithms.coordinator_requests import Operate, Segment
from mpidl.algorithms.units import targets, units
from mpidl.rma.calls import Callee
from mpidl.rma.mailboxes import Message
from mpidl.rma.transport import Fabric
from mpidl.shards.accrual import Accrual
from mpidl.shards.operations import PARAMETERS, Dot
from mpidl.shards.shard import Shard
from mpidl.shards.vectors import Vectors
from mpidl.storage.shard_writer import ShardWriter

#: Of the number of a unit in a push's header, what says that another replica had taken it before.
COPY = 1 << 40


@dataclass(frozen=True, slots=True)
class Begin:
    """Expect the units of an evaluation. Answer: None."""

    evaluation: int
    segments: tuple[Segment, ...]
    unit: int


@dataclass(frozen=True, slots=True)
class Obeyed:
    """Answer: the ordinal of the last order to save that was taken up."""


@dataclass(frozen=True, slots=True)
class Complete:
    """What a server says when all units of an evaluation have been accrued.

    Attributes
    ----------
    evaluation : int
    losses : array (units,)
    won : int
        Units whose second copy came first.
    """

    evaluation: int
    losses: np.ndarray
    won: int


class Operating:
    """One server's vectors.

    Parameters
    ----------
    fabric : Fabric
    shard : Shard
    writer : ShardWriter
    """

    def __init__(self, fabric: Fabric, shard: Shard, writer: ShardWriter) -> None:
        self._callee = Callee(fabric.comm, fabric.roles.coordinator, fabric.doorbells)
        self._shard, self._writer, self._window = shard, writer, fabric.window
        self._done = fabric.window.local("done")
        self._vectors = Vectors(shard.vectors, shard.block)
        self._vectors.rehearse()
        self._accrual = Accrual(self._vectors, shard.pieces)
        self._units = self._won = 0

    def obey(self) -> bool:
        """Carry out the coordinator's next call; return whether there was one."""
        match self._callee.next():
            case Operate(operations):
                results = self._vectors.carry_out(operations)
                if any(not isinstance(each, Dot) and each.target == PARAMETERS for each in operations):
                    self._shard.publish()
                self._callee.answer(results)
            case Begin(evaluation, segments, unit):
                of = units(segments, unit)
                self._accrual.begin(evaluation, *targets(segments, of))
                self._units, self._won = len(of), 0
                self._done[: len(of)] = 0
                self._window.sync()
                self._callee.answer(None)
            case Obeyed():
                self._callee.answer(self._writer.obeyed)
            case _:
                return False
        return True

    def accrue(self, message: Message) -> None:
        """Accrue a chunk of a unit."""
        number, bits = message.portions
        copy, unit = divmod(number, COPY)
        loss = float(np.int64(bits).view(np.float64))
        shard = self._shard
        shard.received += 1
        if message.chunk == shard.chunks - 1:
            shard.pushes += 1
        if not self._accrual.add_chunk(message.fetched, unit, message.chunk, shard.bring(message.values), loss):
            return
        self._won += copy
        self._done[unit] = 1
        self._window.sync()
        if self._accrual.complete == self._units:
            self._callee.notify(Complete(self._accrual.evaluation, self._accrual.losses, self._won))
