"""A pytree of parameters, with its float arrays in one flat vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mpidl.errors import UsageError
from mpidl.parameters.layout import Layout

#: Alignment in bytes of memory that JAX uses without a copy.
ALIGNMENT = 64


class Tree:
    """The leaves of a pytree, and its structure.

    Float arrays are trained. Arrays of other dtypes are constants. Other leaves, such as functions, numbers and random
    keys, don't change.

    Parameters
    ----------
    name : str
        Name of the model in messages.

    Attributes
    ----------
    layout : Layout
        The trained leaves, by their paths in the tree, such as ``"layers.0.weight"``.
    dtype : numpy.dtype
    vector : array (layout.size,)
        The values of the trained leaves.
    constants : dict of array

    Raises
    ------
    UsageError
        No leaf can be trained, or one has a dtype that vectors can't have.
    """

    def __init__(self, parameters: Any, name: str) -> None:
        leaves, self._structure = jax.tree_util.tree_flatten_with_path(parameters)
        self._names = [jax.tree_util.keystr(path, simple=True, separator=".") or "parameters" for path, _ in leaves]
        self._leaves: list[Any] = [jnp.asarray(leaf) if _is_array(leaf) else leaf for _, leaf in leaves]
        kinds = [_kind(leaf) for leaf in self._leaves]
        self._trained = [number for number, kind in enumerate(kinds) if kind == "trained"]
        self._constant = [number for number, kind in enumerate(kinds) if kind == "constant"]
        self.dtype = self._dtype(name)
        arrays = {self._names[number]: np.asarray(self._leaves[number]) for number in self._trained}
        self.constants = {self._names[number]: np.array(self._leaves[number]) for number in self._constant}
        if len(arrays) + len(self.constants) < len(self._trained) + len(self._constant):
            twice = next(each for each in self._names if self._names.count(each) > 1)
            raise UsageError(f"{name}: two parameters are named {twice}, expected distinct names")
        self.layout = Layout([(key, array.shape) for key, array in arrays.items()])
        self.vector = _aligned(self.layout.size, self.dtype)
        for key, view in self.layout.views(self.vector).items():
            view[...] = arrays[key]
        # The initial values are in the vector.
        for number in self._trained + self._constant:
            self._leaves[number] = None

    def _dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype of the trained leaves."""
        trained = [(self._names[number], self._leaves[number]) for number in self._trained]
        if not any(leaf.size for _, leaf in trained):
            raise UsageError(f"{name}: no float array among the parameters, expected at least one to train")
        first = trained[0][0]
        dtype: np.dtype[Any] = trained[0][1].dtype
        for key, leaf in trained:
            if leaf.dtype not in (np.float32, np.float64):
                raise UsageError(f"{name}: parameter {key} is {leaf.dtype}, expected float32 or float64")
            if leaf.dtype != dtype:
                raise UsageError(f"{name}: parameter {key} is {leaf.dtype}, expected {dtype} as {first}")
        return dtype

    def filled(self, trained: Sequence[Any], constants: Mapping[str, Any]) -> Any:
        """Return the pytree with these trained leaves, in the order of the layout, and these constants."""
        leaves = list(self._leaves)
        for number, leaf in zip(self._trained, trained, strict=True):
            leaves[number] = leaf
        for number in self._constant:
            leaves[number] = constants[self._names[number]]
        return jax.tree.unflatten(self._structure, leaves)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)


def _kind(leaf: Any) -> str:
    if not _is_array(leaf) or jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return "other"
    return "trained" if jnp.issubdtype(leaf.dtype, jnp.inexact) else "constant"


def _aligned(size: int, dtype: np.dtype[Any]) -> np.ndarray:
    """Return an array (size,), not initialised, that JAX uses without a copy."""
    spare = ALIGNMENT // dtype.itemsize
    memory = np.empty(size + spare, dtype)
    start = -memory.ctypes.data % ALIGNMENT // dtype.itemsize
    return memory[start : start + size]
