"""A server's parts of a model's tables, which its shard's pushes update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mpidl.rules import Rule
from mpidl.shards.policies import Policy
from mpidl.shards.side_state import FIGURES
from mpidl.shards.state import PushHeader, ShardState
from mpidl.sparse.messages import RowEncodings, TableRows, unpack
from mpidl.tables.distinct import add_to, distinct
from mpidl.tables.table import Table

#: Names of arrays with what is accepted: ids and gradients, the number of each one's push, and the factor of each push.
OPEN = OPEN_IDS, OPEN_GRADIENTS, OPEN_PUSHES, OPEN_FACTORS = "open_ids", "open_gradients", "open_pushes", "open_factors"


class ServerTables:
    """Rows of tables beside a shard (`mpidl.shards.side_state.SideState`).

    What a push has for rows is kept until the push has ended, when the shard's policy has decided about it, and applied
    when the shard's clock advances: the mean of what has been accepted since the last time, by the tables' rule.
    `encodings` are those in which rows travel, and `clock` is the shard's.
    """

    def __init__(self, tables: Sequence[Table], rule: Rule, encodings: RowEncodings, clock: int = 0) -> None:
        self.tables, self._rule, self.encodings, self._dtype = tables, rule, encodings, encodings.fetched.dtype
        self._dimensions = [table.spec.dimension for table in tables]
        self._clock = clock
        self._coming: dict[int, list[TableRows]] = {}
        self._accepted: list[tuple[list[TableRows], float]] = []

    def unpack(self, data: np.ndarray) -> list[TableRows]:
        return list(unpack(data.copy(), self._dimensions, self.encodings.pushed))

    def answer(self, request: np.ndarray, answer: np.ndarray) -> None:
        encoding, start = self.encodings.fetched, 0
        for table, ids, _ in unpack(request, self._dimensions, None):
            shape = ids.size, self._dimensions[table]
            data = answer[start : start + encoding.nbytes(shape[0] * shape[1])]
            rows = np.empty(shape, self._dtype) if encoding.encoded else encoding.read(data, shape)
            self.tables[table].read(ids, rows)
            if encoding.encoded:
                encoding.write(rows, data)
            start += data.size

    def receive(self, worker: int, values: Sequence[TableRows]) -> None:
        self._coming.setdefault(worker, []).extend(values)

    def end_push(self, shard: ShardState, policy: Policy, push: PushHeader, dropped: bool) -> None:
        parts = self._coming.pop(push.worker, [])
        if not dropped:
            self._accepted.append((parts, policy.factor(push)))
        self.settle(shard, policy)

    def settle(self, shard: ShardState, policy: Policy) -> None:
        if shard.clock != self._clock:
            self._clock = shard.clock
            self._apply(shard, policy, self._clock)

    def end_worker(self, shard: ShardState, policy: Policy, worker: int) -> None:
        if (parts := self._coming.pop(worker, None)) is not None:
            self._accepted.append((parts, 1.0))
            self._apply(shard, policy, self._clock + 1)

    def apply_rest(self, shard: ShardState, policy: Policy) -> None:
        self._apply(shard, policy, self._clock + 1)

    def _apply(self, shard: ShardState, policy: Policy, step: int) -> None:
        """Apply the mean of the accepted pushes, as an update of this number."""
        accepted, self._accepted = self._accepted, []
        if accepted:
            count, rate = policy.count or len(accepted), self._rule.rate * shard.rate_factor
            for table, own in enumerate(self.tables):
                found = [(self._of(table, parts), factor) for parts, factor in accepted]
                self._update(own, found, step, rate, count)

    def _update(
        self, table: Table, found: Sequence[tuple[TableRows, float]], step: int, rate: float, count: int
    ) -> None:
        """Apply the weighted mean of what pushes have for a table, with their mean weight as its weight."""
        if not any(part.ids.size for part, _ in found):
            return
        total = sum(factor for _, factor in found)
        if len(found) == 1:
            table.update(found[0][0].ids, found[0][0].values, step, rate, total / count)
            return
        ids, _, places = distinct(np.concatenate([part.ids for part, _ in found]), 1)
        summed, start = np.zeros((ids.size, table.spec.dimension), self._dtype), 0
        for part, factor in found:
            own = places[start : start + part.ids.size]
            add_to(summed, own, part.values if factor == 1 else part.values * self._dtype.type(factor))
            start += own.size
        summed /= total
        table.update(ids, summed, step, rate, total / count)

    def copy(self) -> ServerTables:
        twin = ServerTables([table.copy() for table in self.tables], self._rule, self.encodings, self._clock)
        twin._take_over(self)
        return twin

    def load(self, other: ServerTables) -> None:
        for own, given in zip(self.tables, other.tables, strict=True):
            own.load(given)
        self._take_over(other)

    def _take_over(self, other: ServerTables) -> None:
        self._clock, self._accepted = other._clock, list(other._accepted)
        self._coming = {worker: list(parts) for worker, parts in other._coming.items()}

    def figures(self) -> Mapping[str, int]:
        tables = self.tables
        counts = ((len(table), table.new, table.admitted, table.evicted) for table in tables)
        return dict(zip(FIGURES, map(sum, zip(*counts, strict=True)), strict=True))

    def arrays(self) -> Mapping[str, np.ndarray]:
        """Return each table's arrays as "tables/NAME/ARRAY", with what is accepted and not applied yet."""
        found: dict[str, np.ndarray] = {}
        for number, table in enumerate(self.tables):
            found |= {f"tables/{table.spec.name}/{name}": array for name, array in table.arrays().items()}
            found |= {f"tables/{table.spec.name}/{name}": array for name, array in self._open(number).items()}
        return found

    def _open(self, number: int) -> dict[str, np.ndarray]:
        """Return what is accepted for a table and not applied yet; nothing if there is nothing of any table."""
        if not self._accepted:
            return {}
        parts = [self._of(number, own) for own, _ in self._accepted]
        return {
            OPEN_IDS: np.concatenate([part.ids for part in parts]),
            OPEN_GRADIENTS: np.concatenate([part.values for part in parts]),
            OPEN_PUSHES: np.repeat(np.arange(len(parts)), [part.ids.size for part in parts]),
            OPEN_FACTORS: np.array([factor for _, factor in self._accepted]),
        }

    def resume(self, number: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue with what was accepted for a table, given its arrays of a checkpoint; for the first table first."""
        if OPEN_IDS in arrays:
            if not self._accepted:
                self._accepted = [([], float(factor)) for factor in arrays[OPEN_FACTORS]]
            for push, (parts, _) in enumerate(self._accepted):
                own = arrays[OPEN_PUSHES] == push
                parts.append(TableRows(number, arrays[OPEN_IDS][own], arrays[OPEN_GRADIENTS][own]))

    def _of(self, number: int, parts: Sequence[TableRows]) -> TableRows:
        """Return what a push has for a table, as one part."""
        own = [part for part in parts if part.table == number]
        if len(own) == 1:
            return own[0]
        ids, values = [part.ids for part in own], [part.values for part in own]
        none = np.empty(0, np.int64), np.empty((0, self._dimensions[number]), self._dtype)
        return TableRows(number, np.concatenate([none[0], *ids]), np.concatenate([none[1], *values]))
