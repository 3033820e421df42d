"""A server's part in Sandblaster: it carries out the coordinator's operations, and accrues units."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from mpidl.algorithms.coordination import Operate, cut_units, targets
from mpidl.rma.server import ServerLink
from mpidl.shards.shard import Shard
from mpidl.shards.state import PARAMETERS
from mpidl.shards.vectors import Accrual, Vectors, merged
from mpidl.transport.protocol import COPY, TICKETS, Begin, Complete, Obeyed, PushMessage


class SandblasterServer:
    """One server's vectors.

    `obeyed` returns the ordinal of the last order to save that was obeyed.
    """

    def __init__(self, shards: Mapping[int, Shard], obeyed: Callable[[], int]) -> None:
        self._shards, self._obeyed = shards, obeyed
        self._vectors = {
            number: Vectors(shard.vectors, shard.block, shard.range.start) for number, shard in shards.items()
        }
        for vectors in self._vectors.values():
            vectors.rehearse()
        self._accruals = {number: Accrual(self._vectors[number], shard.pieces) for number, shard in shards.items()}
        self._units = self._won = 0

    def bind(self, link: ServerLink) -> None:
        """Reach the other ranks by `link` from now on."""
        self._link = link
        link.units.expect(self._units)
        for unit in filter(self._has, range(self._units)):
            link.units.show(unit)

    def obey(self) -> bool:
        """Carry out the coordinator's next call; return whether there was one."""
        match self._link.calls.next():
            case Operate(operations):
                results = [vectors.carry_out(operations) for vectors in self._vectors.values()]
                if any(getattr(each, "target", None) == PARAMETERS for each in operations):
                    for shard in self._shards.values():
                        shard.publish()
                self._link.calls.answer(merged(results))
            case Begin(evaluation, segments, unit):
                units = cut_units(segments, unit)
                for accrual in self._accruals.values():
                    accrual.begin(evaluation, *targets(segments, units))
                self._units, self._won = len(units), 0
                self._link.units.expect(len(units))
                self._link.calls.answer(None)
            case Obeyed():
                self._link.calls.answer(self._obeyed())
            case _:
                return False
        return True

    def accrue(self, shard_number: int, message: PushMessage) -> None:
        """Accrue one chunk of a unit in one of the shards."""
        evaluation, number = divmod(message.fetched, TICKETS)
        copy, unit = divmod(number, COPY)
        loss, weight = np.array(message.batches, np.int64).view(np.float64).tolist()
        shard, accrual = self._shards[shard_number], self._accruals[shard_number]
        if message.chunk == 0:
            shard.pushes += 1
        values = shard.bring(message.values)
        if not accrual.add_chunk(evaluation, unit, message.chunk, values, loss, weight) or not self._has(unit):
            return
        self._won += copy
        self._link.units.show(unit)
        if all(each.complete == self._units for each in self._accruals.values()):
            self._link.calls.notify(Complete(accrual.evaluation, accrual.losses, accrual.weights, self._won))

    def _has(self, unit: int) -> bool:
        """Return whether all shards have accrued a unit."""
        return all(accrual.has(unit) for accrual in self._accruals.values())
