"""The tables of a checkpoint: rows for evaluations and predictions, what a server restores, and tensors for export."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mpidl.errors import MpidlError, UsageError, quoted
from mpidl.nn import Embedding, Network, SparseEmbedding
from mpidl.rules import RULES, Adagrad
from mpidl.schema import Natural, convert
from mpidl.sparse.server_tables import OPEN, OPEN_FACTORS, OPEN_IDS, ServerTables
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.files import readable
from mpidl.storage.table_files import (
    BLOCK,
    COUNTS,
    IDS,
    ROWS,
    TOUCHES,
    RowPart,
    SavedTable,
    check_tables,
    saved_tables,
    take,
)
from mpidl.tables.distinct import distinct, owner
from mpidl.tables.lookups import Lookup, TableSpec, WithTables
from mpidl.tables.rows import InitialRows
from mpidl.tables.table import Table

#: Bytes of the touches that say which of the counts is halved next.
HAND = 8


class SavedRows:
    """The rows of a checkpoint (`mpidl.tables.lookups.RowSource`): first values for ids without a row.

    Ids are in memory, while rows stay on disk until they are looked up. Raise UsageError if the checkpoint has other
    `tables`, and MpidlError if a file can't be read.
    """

    complete = True

    def __init__(self, checkpoint: Checkpoint, tables: Sequence[TableSpec]) -> None:
        check_tables(checkpoint, tables)
        saved, seed = saved_tables(checkpoint), first_seed(checkpoint)
        self._saved = [saved[spec.name] for spec in tables]
        for each in self._saved:
            each.check()
        self._parts = [[_Rows(part) for part in each.parts] for each in self._saved]
        self._first = [InitialRows(each.spec, seed) for each in self._saved]

    def look_up(self, table: int, ids: np.ndarray) -> Lookup:
        saved, parts = self._saved[table], self._parts[table]
        found = distinct(ids, len(parts))
        rows = np.empty((found.ids.size, saved.spec.dimension), saved.dtype)
        known = np.zeros(found.ids.size, np.int64)
        for own, part in zip(found.parts, parts, strict=True):
            part.read(found.ids[own], rows[own], known[own])
        self._first[table].write(found.ids, known, rows)
        return Lookup(rows, found)

    def stored(self, table: int, server: int, servers: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the ids of a server that have rows in a table, and these, block by block."""
        return ((block[IDS], block[ROWS]) for block in self._saved[table].blocks(server, servers))


class _Rows:
    """A shard's rows, by their ids."""

    def __init__(self, part: RowPart) -> None:
        self._places = np.argsort(part.ids)
        self._ids, self._rows = part.ids[self._places], part.mapped(ROWS)

    def read(self, ids: np.ndarray, rows: np.ndarray, known: np.ndarray) -> None:
        """Write the rows of ids that the file has, and 1 into `known` for each of them."""
        if not self._ids.size:
            return
        place = np.searchsorted(self._ids, ids)
        place[place == self._ids.size] = 0
        here = self._ids[place] == ids
        rows[here] = take(self._rows, self._places[place[here]])
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


def resume(tables: ServerTables, checkpoint: Checkpoint, server: int, servers: int, same_algorithm: bool) -> None:
    """Give a server its part of a checkpoint's tables and, for the same algorithm, what was accepted for them.

    Raise UsageError if the rule keeps other states for each row, and MpidlError if a file can't be read.
    """
    saved, before = saved_tables(checkpoint), _states(checkpoint)
    for number, table in enumerate(tables.tables):
        found, states = saved[table.spec.name], table.rule.states
        if before != states or found.states != len(states):
            present, past = (", ".join(names) or "nothing" for names in (states, before))
            raise UsageError(
                f"tables.rule: {table.rule.name} keeps {present} for each row, {checkpoint.path} was saved with {past}"
            )
        restore(table, found, server, servers)
        if same_algorithm:
            with readable(checkpoint.path):
                tables.resume(number, _open(found, server, servers))


def _states(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the names of the states that the rule of a checkpoint's tables keeps."""
    tables, server = (checkpoint.sections.get(name, {}) for name in ("tables", "server"))
    rule = tables.get("rule") or server.get("rule") or Adagrad.name
    return RULES[rule].states if rule in RULES else ()


def restore(table: Table, saved: SavedTable, server: int, servers: int) -> None:
    """Give a server's part of a table its rows of a checkpoint, on any number of servers.

    Raise MpidlError if a file can't be read, or the rows are too many for the table.
    """
    others = {COUNTS: _counts(saved, server, servers)}
    if (touches := _touches(saved, server, servers)) is not None:
        others[TOUCHES] = touches
    for block in saved.blocks(server, servers):
        table.restore(block | others)


def _counts(saved: SavedTable, server: int, servers: int) -> np.ndarray:
    """Return a server's counts: on other servers than before, the first one has the sums."""
    counts = np.stack([part.read(COUNTS) for part in saved.parts])
    if len(saved.parts) == servers:
        return np.asarray(counts[server])
    first = counts[:, 0].max(keepdims=True)
    return np.concatenate([first, counts[:, 1:].sum(0) if server == 0 else np.zeros_like(counts[0, 1:])])


def _touches(saved: SavedTable, server: int, servers: int) -> np.ndarray | None:
    """Return the counts of a server's admission: those of other servers are of no id that is its own.

    None if there are none, or if they aren't alike.
    """
    parts = saved.of(server, servers)
    found = [part.read(TOUCHES) for part in parts if TOUCHES in part]
    if not found or len({each.shape for each in found}) > 1 or found[0].dtype != np.uint8 or found[0].size <= HAND:
        return None
    merged: np.ndarray = np.max(found, axis=0)
    merged[-HAND:] = found[0][-HAND:]
    if not 0 <= merged[-HAND:].view(np.int64)[0] < merged.size - HAND:
        raise MpidlError(f"{parts[0].file}: table {quoted(saved.spec.name)} has damaged touches")
    return merged


def _open(saved: SavedTable, server: int, servers: int) -> dict[str, np.ndarray]:
    """Return the arrays with what was accepted of a server's rows and not applied yet; none if there was nothing."""
    found = [{name: part.read(name) for name in OPEN} for part in saved.parts if OPEN_IDS in part]
    if not found:
        return {}
    ids, gradients, pushes = (np.concatenate([each[name] for each in found]) for name in OPEN[:3])
    own = owner(ids, servers) == server
    return dict(zip(OPEN, (ids[own], gradients[own], pushes[own], found[0][OPEN_FACTORS]), strict=True))


def ids_and_rows(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Return each table's ids, int64 (n,), and rows (n, dimension), as "NAME.ids" and "NAME.rows".

    Raise UsageError if they are larger than the memory, and MpidlError if a file can't be read.
    """
    found: dict[str, np.ndarray] = {}
    for name, saved in saved_tables(checkpoint).items():
        _check_memory(saved, len(saved))
        found |= {f"{name}.{array}": saved.read(array) for array in (IDS, ROWS)}
    return found


def weights(checkpoint: Checkpoint, to: str) -> dict[str, np.ndarray]:
    """Return the rows of all ids of each table, (rows, dimension), by its name: first values for those without a row.

    Raise UsageError if a table takes any id, which the format `to` has no place for, or if its rows are larger than the
    memory; and MpidlError if a file can't be read.
    """
    return {name: _weight(saved, first_seed(checkpoint), to) for name, saved in saved_tables(checkpoint).items()}


def dense(network: Network, weights: Mapping[str, np.ndarray]) -> Network:
    """Return a network with the weights of its tables, by their names, among its parameters."""
    if not network.tables:
        return network
    layers, own = [], {}
    for layer, name in zip(network.layers, network.graph.names, strict=True):
        if isinstance(layer, SparseEmbedding):
            if layer.pools:
                raise UsageError(f"--to onnx: layer {quoted(name)}: bags have no operator in ONNX")
            own[f"{name}/weight"] = weight = weights[layer.spec(name).name]
            layer = Embedding(*weight.shape, name=layer.name, inputs=layer.inputs)
        layers.append(layer)
    whole = Network(layers, network.input_shape, loss=network.loss, dtype=network.dtype.name)
    own |= network.layout.views(network.parameters)
    for name, tensor in whole.layout.views(whole.parameters).items():
        tensor[...] = own[name]
    return whole


def _weight(saved: SavedTable, seed: int, to: str) -> np.ndarray:
    spec = saved.spec
    if spec.rows is None:
        raise UsageError(
            f"--to {to}: table {quoted(spec.name)} takes any id, expected a number of rows; npz and safetensors have "
            "ids and rows"
        )
    _check_memory(saved, spec.rows)
    saved.check()
    values, first = np.empty((spec.rows, spec.dimension), saved.dtype), InitialRows(spec, seed)
    for start in range(0, spec.rows, BLOCK):
        ids = np.arange(start, min(start + BLOCK, spec.rows))
        first.write(ids, np.zeros_like(ids), values[start : start + BLOCK])
    for part in saved.parts:
        if part.ids.size and not 0 <= part.ids.min() <= part.ids.max() < spec.rows:
            raise MpidlError(f"{part.file}: table {quoted(spec.name)} has ids beyond its {spec.rows} rows")
        start = 0
        for rows, places in part.mapped(ROWS):
            values[part.ids[start : start + places.size]] = rows[places]
            start += places.size
    if spec.padding is not None and 0 <= spec.padding < spec.rows:
        values[spec.padding] = 0
    return values


def _check_memory(saved: SavedTable, rows: int) -> None:
    needed = rows * saved.spec.dimension * saved.dtype.itemsize
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > present:
        raise UsageError(
            f"table {quoted(saved.spec.name)}: {rows:,} rows take {needed / 1e9:,.1f} GB, this machine has "
            f"{present / 1e9:,.1f} GB of memory"
        )
