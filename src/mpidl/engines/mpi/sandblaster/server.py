"""A server's part in Sandblaster: it carries out the coordinator's operations, and accrues units."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mpidl.algorithms.coordinator_requests import Operate
from mpidl.algorithms.units import cut_units, targets
from mpidl.shards.accrual import Accrual
from mpidl.shards.operations import PARAMETERS, Dot
from mpidl.shards.shard import Shard
from mpidl.shards.vectors import Vectors
from mpidl.transport.interface.server import ServerLink
from mpidl.transport.protocol import COPY, TICKETS, Begin, Complete, Message, Obeyed


class SandblasterServer:
    """One server's vectors.

    Parameters
    ----------
    shard : Shard
    obeyed : callable
        Returns the ordinal of the last order to save that was taken up.
    """

    def __init__(self, shard: Shard, obeyed: Callable[[], int]) -> None:
        self._shard, self._obeyed = shard, obeyed
        self._vectors = Vectors(shard.vectors, shard.block)
        self._vectors.rehearse()
        self._accrual = Accrual(self._vectors, shard.pieces)
        self._units = self._won = 0

    def bind(self, link: ServerLink) -> None:
        """Reach the other ranks by `link` from now on."""
        self._link = link
        link.expect_units(self._units)
        for unit in set(range(self._units)).difference(self._accrual.unfinished().tolist()):
            link.show_done(unit)

    def obey(self) -> bool:
        """Carry out the coordinator's next call; return whether there was one."""
        match self._link.next_call():
            case Operate(operations):
                results = self._vectors.carry_out(operations)
                if any(not isinstance(each, Dot) and each.target == PARAMETERS for each in operations):
                    self._shard.publish()
                self._link.answer(results)
            case Begin(evaluation, segments, unit):
                units = cut_units(segments, unit)
                self._accrual.begin(evaluation, *targets(segments, units))
                self._units, self._won = len(units), 0
                self._link.expect_units(len(units))
                self._link.answer(None)
            case Obeyed():
                self._link.answer(self._obeyed())
            case _:
                return False
        return True

    def accrue(self, message: Message) -> None:
        """Accrue one chunk of a unit."""
        evaluation, number = divmod(message.fetched, TICKETS)
        copy, unit = divmod(number, COPY)
        loss, weight = np.array(message.portions, np.int64).view(np.float64).tolist()
        shard = self._shard
        shard.received += 1
        if message.chunk == shard.chunks - 1:
            shard.pushes += 1
        values = shard.bring(message.values)
        if not self._accrual.add_chunk(evaluation, unit, message.chunk, values, loss, weight):
            return
        self._won += copy
        self._link.show_done(unit)
        accrual = self._accrual
        if accrual.complete == self._units:
            self._link.notify(Complete(accrual.evaluation, accrual.losses, accrual.weights, self._won))
