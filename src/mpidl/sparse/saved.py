"""The tables of a checkpoint in use: rows by id for evaluations and predictions, and what a server restores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpidl.errors import UsageError
from mpidl.schema import Natural, convert
from mpidl.sparse.server_tables import OPEN, OPEN_FACTORS, OPEN_IDS, ServerTables
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.table_files import COUNTS, IDS, ROWS, STATE, Part, SavedTable, check_tables, saved_tables
from mpidl.tables.distinct import distinct, owner
from mpidl.tables.first import FirstValues
from mpidl.tables.lookups import Lookup, TableSpec, WithTables
from mpidl.tables.table import Table


class SavedRows:
    """The rows of a checkpoint (`mpidl.tables.lookups.RowSource`): first values for ids without a row.

    Ids are in memory, while rows stay on disk until they are looked up. Raise UsageError if the checkpoint has other
    `tables`, and MpidlError if a file can't be read.
    """

    def __init__(self, checkpoint: Checkpoint, tables: Sequence[TableSpec]) -> None:
        check_tables(checkpoint, tables)
        saved, seed = saved_tables(checkpoint), first_seed(checkpoint)
        self._tables = [SavedValues(saved[spec.name], seed) for spec in tables]

    def look_up(self, table: int, ids: np.ndarray) -> Lookup:
        return self._tables[table].look_up(ids)


class SavedValues:
    """The values of a table in a checkpoint, and the first values of others by the run's seed."""

    def __init__(self, saved: SavedTable, seed: int) -> None:
        self._dimension, self._dtype = saved.spec.dimension, saved.dtype
        self._parts = [_Rows(part) for part in saved.parts]
        self._first = FirstValues(saved.spec, seed)

    def look_up(self, ids: np.ndarray) -> Lookup:
        """Return the values of ids, int64 (n,)."""
        found = distinct(ids, len(self._parts))
        rows = np.empty((found.ids.size, self._dimension), self._dtype)
        known = np.zeros(found.ids.size, np.int64)
        for own, part in zip(found.parts, self._parts, strict=True):
            part.read(found.ids[own], rows[own], known[own])
        self._first.write(found.ids, known, rows)
        return Lookup(rows, found)


class _Rows:
    """The rows in one file, by their ids."""

    def __init__(self, part: Part) -> None:
        ids = part.read(IDS)
        self._places = np.argsort(ids)
        self._ids, self._rows = ids[self._places], part.mapped(ROWS)

    def read(self, ids: np.ndarray, rows: np.ndarray, known: np.ndarray) -> None:
        """Write the rows of ids that the file has, and 1 into `known` for each of them."""
        if not self._ids.size:
            return
        place = np.searchsorted(self._ids, ids)
        place[place == self._ids.size] = 0
        here = self._ids[place] == ids
        rows[here] = self._rows[self._places[place[here]]]
        known[here] = 1


def first_seed(checkpoint: Checkpoint) -> int:
    """Return the seed of the first values of a checkpoint's tables: that of its run."""
    seed: int = convert(checkpoint.sections.get("run", {}).get("seed", 0), Natural, "run.seed")
    return seed


def give_rows(model: WithTables, checkpoint: Checkpoint) -> None:
    """Let a model look up the rows of its tables in a checkpoint, whose parameters it has.

    Raise UsageError if it has other tables, and MpidlError if a file can't be read.
    """
    if model.tables or checkpoint.tables:
        model.rows = SavedRows(checkpoint, model.tables)


def restore(table: Table, saved: SavedTable, server: int, servers: int, with_state: bool = True) -> None:
    """Give a server's part of a table its rows of a checkpoint, on any number of servers.

    Without `with_state`, the rule's state of each row begins anew. Raise MpidlError if a file can't be read, or the
    rows are too many for the table.
    """
    counts = _counts(saved, server, servers)
    for block in saved.blocks(server, servers):
        if not with_state:
            block[STATE] = np.zeros((len(block[STATE]), len(table.rule.states) * table.spec.dimension), table.dtype)
        table.restore({**block, COUNTS: counts})


def _counts(saved: SavedTable, server: int, servers: int) -> np.ndarray:
    """Return a server's counts: on other servers than before, the first one has the sums."""
    counts = np.stack([part.read(COUNTS) for part in saved.parts])
    if len(saved.parts) == servers:
        return np.asarray(counts[server])
    first = counts[:, 0].max(keepdims=True)
    return np.concatenate([first, counts[:, 1:].sum(0) if server == 0 else np.zeros_like(counts[0, 1:])])


def resume(tables: ServerTables, checkpoint: Checkpoint, server: int, servers: int, same_algorithm: bool) -> None:
    """Give a server its part of a checkpoint's tables and, for the same algorithm, what was accepted for them.

    Raise UsageError if the rule keeps other states for each row, and MpidlError if a file can't be read.
    """
    saved = saved_tables(checkpoint)
    for number, table in enumerate(tables.tables):
        found, states = saved[table.spec.name], len(table.rule.states)
        if found.states != states:
            raise UsageError(
                f"tables.rule: {table.rule.name} keeps {states} states of each row, {checkpoint.path} was saved with "
                f"{found.states}"
            )
        restore(table, found, server, servers)
        if same_algorithm:
            tables.resume(number, _open(found, server, servers))


def _open(saved: SavedTable, server: int, servers: int) -> dict[str, np.ndarray]:
    """Return the arrays with what was accepted of a server's rows and not applied yet; none if there was nothing."""
    found = [{name: part.read(name) for name in OPEN} for part in saved.parts if OPEN_IDS in part.paths]
    if not found:
        return {}
    ids, gradients, pushes = (np.concatenate([each[name] for each in found]) for name in OPEN[:3])
    own = owner(ids, servers) == server
    return dict(zip(OPEN, (ids[own], gradients[own], pushes[own], found[0][OPEN_FACTORS]), strict=True))
