"""The tables of a checkpoint as tensors of other formats: ids and rows, or all rows as the weight of a dense layer."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from mpidl.errors import MpidlError, UsageError, quoted
from mpidl.nn import Embedding, Network, SparseEmbedding
from mpidl.sparse.saved import first_seed
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.table_files import BLOCK, IDS, ROWS, SavedTable, saved_tables
from mpidl.tables.first import FirstValues


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
    values, first = np.empty((spec.rows, spec.dimension), saved.dtype), FirstValues(spec, seed)
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
