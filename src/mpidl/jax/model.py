"""A pytree of parameters and a loss function as a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mpidl.data.batch import Batch, parts, seed_of_batch
from mpidl.errors import UsageError, kind_of, nearest, quoted
from mpidl.nn.adaptation import ModelError, as_usage_errors, model_errors, weighted
from mpidl.nn.evaluation import correct_classes
from mpidl.nn.model import CompleteModel, Evaluation
from mpidl.parameters.layout import Layout
from mpidl.tables.lookups import Lookup, TableSpec, Wanted

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

    def trained(self, tree: Any) -> list[Any]:
        """Return the trained leaves of a tree of the same structure, in their order; ModelError if it has another."""
        try:
            leaves = self._structure.flatten_up_to(tree)
            found = [np.shape(leaves[number]) for number in self._trained]
        except (ValueError, TypeError) as error:
            raise ModelError(f"a pytree unlike the parameters: {error}") from None
        if (expected := [part.shape for part in self.layout]) != found:
            raise ModelError(f"leaves of the shapes {found}, expected {expected}")
        return [leaves[number] for number in self._trained]


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


__all__ = ["JaxModel"]


class JaxModel(CompleteModel):
    """A pytree of parameters and a loss function of JAX as a model.

    `jax.jit` compiles the function once for each shape of a batch, including a smaller last one.

    JAX reads the parameters in the package's flat vector: a leaf is copied, for each batch, only if its memory isn't
    aligned to 64 bytes. The gradient is copied once, from JAX's arrays into a flat vector. On devices other than the
    CPU, both are transferred. All state that changes during training is a parameter with a gradient: there are no
    statistics, such as running means.

    Parameters
    ----------
    parameters : pytree
        Its float arrays are trained: float32, or with ``jax_enable_x64`` float64. Its integer arrays are constants.
        Other leaves, such as functions and Python's numbers, don't change.
    loss : callable
        Function of (parameters, (inputs, targets)) that returns the mean loss over the batch, a scalar. An argument
        ``key`` gets a random key, for dropout, or None in evaluations. Floats among inputs and targets are converted to
        the dtype of the parameters.
    has_aux : bool
        Whether the function returns the pair (loss, outputs), as for `jax.value_and_grad`. Outputs (n, ..., classes)
        and integer targets (n, ...) give the accuracy.
    seed : int
        Seed of the random keys, together with a batch's number in the run.
    micro_batches : int
        Number of pieces in which to compute the gradient of a batch, one after another, to save memory.
    takes_integers : bool
        Whether integer inputs, including bytes, stay integers rather than become floats.
    loss_weights : mapping of str to float, optional
        Factors of the terms of a loss that returns a mapping of named means, which are summed; 1 by default.
    tables : sequence of TableSpec
        Tables whose rows are on the servers. The function's argument ``rows`` gets, by the name of each table, the rows
        of the ids that `lookups` returns: the shape of the ids, with the dimension appended.
    lookups : callable, optional
        Function of the inputs, outside of JAX, that returns a mapping of the tables' names to ids, arrays of integers.

    Raises
    ------
    UsageError
        There is nothing to train, parameters have other dtypes, or there are tables without lookups or the argument.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> def loss(parameters, batch):
    ...     inputs, targets = batch
    ...     return jnp.mean((inputs @ parameters["weight"] + parameters["bias"] - targets) ** 2)
    >>> model = JaxModel({"weight": jnp.zeros((3, 2)), "bias": jnp.zeros(2)}, loss)
    >>> [tensor.name for tensor in model.layout]
    ['bias', 'weight']
    >>> model.tree()["weight"].shape
    (3, 2)
    """

    own, by_stages = True, "mpidl.jax.sequence"

    def __init__(
        self,
        parameters: Any,
        loss: Callable[..., Any],
        *,
        has_aux: bool = False,
        seed: int = 0,
        micro_batches: int = 1,
        takes_integers: bool = False,
        loss_weights: Mapping[str, float] | None = None,
        tables: Sequence[TableSpec] = (),
        lookups: Callable[[Any], Mapping[str, Any]] | None = None,
    ) -> None:
        if not callable(loss):
            raise UsageError(f"model: loss: found {kind_of(loss)}, expected a function of (parameters, batch)")
        self._name = f"model: {getattr(loss, '__name__', type(loss).__name__)}"
        self._loss, self._has_aux, self._seed, self._micro_batches = loss, has_aux, seed, micro_batches
        self._weights = loss_weights or {}
        arguments = inspect.signature(loss).parameters
        self._takes_key, self._takes_rows = "key" in arguments, "rows" in arguments
        self.tables, self._lookups = tables, lookups
        if tables and not (lookups and self._takes_rows):
            missing = "an argument rows of the loss" if lookups else "lookups"
            raise UsageError(f"{self._name}: tables, but not {missing}, expected both")
        self.takes_integers = takes_integers
        self._tree = Tree(parameters, self._name)
        self.layout, self.dtype = self._tree.layout, self._tree.dtype
        self.parameters = self._tree.vector
        self._gradient = np.zeros(self.layout.size, self.dtype)
        self._gradients = list(self.layout.views(self._gradient).values())
        self._differentiated = jax.jit(jax.value_and_grad(lambda *given: self._compute(*given)[0], argnums=(0, 1)))
        self._computed = jax.jit(self._compute)

    @property
    def parameters(self) -> Any:
        return self._vector

    @parameters.setter
    def parameters(self, vector: Any) -> None:
        self._vector, self._leaves = vector, list(self.layout.views(vector).values())

    def tree(self) -> Any:
        """Return the pytree of the parameters with copies of their present values."""
        constants = {name: jnp.array(array) for name, array in self._tree.constants.items()}
        return self._tree.filled([jnp.array(leaf) for leaf in self._leaves], constants)

    def flat_gradient(self, gradients: Any) -> np.ndarray:
        """Return gradients, a pytree like the parameters, as a vector; the next gradient overwrites it.

        Raise ModelError if it has another structure.
        """
        for view, leaf in zip(self._gradients, self._tree.trained(gradients), strict=True):
            np.copyto(view, leaf)
        return self._gradient

    # Functions that JAX traces.

    def _compute(
        self, leaves: Any, rows: Any, constants: Any, batch: Any, seed: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        """Return the loss, the outputs and the terms of the loss of a batch, in evaluations without a seed."""
        further = {"key": None if seed is None else jax.random.key(seed)} if self._takes_key else {}
        further |= {"rows": rows} if self._takes_rows else {}
        result = self._loss(self._tree.filled(leaves, constants), jax.tree.map(self._as_parameters, batch), **further)
        if not self._has_aux:
            result = result, None
        if not isinstance(result, tuple) or len(result) != 2:
            raise ModelError(f"{self._name} returned {_found(result)}, expected the pair (loss, outputs)")
        loss, outputs = result
        terms = loss if isinstance(loss, Mapping) and loss else {}
        for term in terms.values():
            self._scalar(term)
        total = weighted(terms, self._weights, self._name)
        return self._scalar(total if terms else loss), outputs, dict(terms)

    def _as_parameters(self, array: Any) -> Any:
        return array.astype(self.dtype) if jnp.issubdtype(array.dtype, jnp.floating) else array

    def _scalar(self, loss: Any) -> Any:
        if not isinstance(loss, jax.Array) or loss.shape != () or not jnp.issubdtype(loss.dtype, jnp.floating):
            hint = "; has_aux = True if it is (loss, outputs)" if isinstance(loss, tuple) else ""
            raise ModelError(f"{self._name}: the loss is {_found(loss)}, expected a float scalar, the mean{hint}")
        return loss

    # Tables.

    def wanted(self, batch: Batch) -> Sequence[Wanted] | None:
        """Return the lookups of an undivided batch; ModelError if the function failed."""
        if not self.tables or self._micro_batches > 1:
            return None
        return [Wanted(number, self.tables[number].checked(ids)) for number, ids in self._ids(batch.inputs)]

    def _ids(self, inputs: Any) -> Iterator[tuple[int, Any]]:
        """Yield the number of each table in which inputs look something up, and the ids."""
        names = [each.name for each in self.tables]
        with model_errors(f"{self._name}: lookups"):
            for name, ids in self._lookups(inputs).items() if self._lookups and self.tables else ():
                if name not in names:
                    raise ModelError(f"{self._name}: lookups: {quoted(name)} is no table{nearest(name, names)}")
                yield names.index(name), ids

    def _look_up(self, inputs: Any) -> tuple[dict[str, Lookup], dict[str, np.ndarray]]:
        """Return lookups by the names of their tables, and the rows of all ids."""
        found, rows = dict[str, Lookup](), dict[str, np.ndarray]()
        for number, ids in self._ids(inputs):
            spec = self.tables[number]
            own = found[spec.name] = self.rows.look_up(number, spec.checked(ids))
            rows[spec.name] = own.rows[own.places].reshape(*np.shape(ids), spec.dimension)
        return found, rows

    # The interface of models.

    def loss_and_gradient(self, batch: Batch) -> tuple[float, Any]:
        """Return the mean loss over the batch and its gradient; ModelError if the function failed."""
        with model_errors(self._name):
            return self._summed(batch, seed_of_batch(self._seed, batch.number)), self._gradient

    def _summed(self, batch: Batch, seed: int) -> float:
        """Sum the gradient of a batch over its pieces, and return the loss."""
        pieces, shares = self._pieces((batch.inputs, batch.targets), batch)
        total = 0.0
        for number, (piece, share) in enumerate(zip(pieces, shares, strict=True)):
            key = np.uint32((seed + number) % 2**32)
            found, rows = self._look_up(piece[0])
            loss, (gradients, of_rows) = self._differentiated(self._leaves, rows, self._tree.constants, piece, key)
            for name, lookup in found.items():
                lookup.add(np.asarray(of_rows[name] * share).reshape(lookup.places.size, lookup.rows.shape[1]))
            for sums, gradient in zip(self._gradients, gradients, strict=True):
                if number == 0:
                    np.multiply(gradient, share, out=sums)
                else:
                    sums += np.multiply(gradient, share)
            total += float(loss) * share
        return total

    def _pieces(self, values: Any, batch: Batch) -> tuple[list[Any], list[float]]:
        """Return the pieces of a batch, each with its share of the batch's weight."""
        if self._micro_batches == 1:
            return [values], [1.0]
        samples = next(len(each) for each in jax.tree.leaves(values) if np.ndim(each))
        slices = parts(samples, self._micro_batches)
        pieces = [
            jax.tree.map(lambda each, part=part: each[part] if np.ndim(each) else each, values) for part in slices
        ]
        return pieces, batch.shares(pieces, [part.stop - part.start for part in slices])

    def evaluate(self, batch: Batch) -> Evaluation:
        """Return the evaluation of a batch; ModelError if the function failed."""
        with model_errors(self._name):
            values = (batch.inputs, batch.targets)
            rows = self._look_up(batch.inputs)[1]
            loss, outputs, terms = self._computed(self._leaves, rows, self._tree.constants, values, None)
            self.terms = tuple(terms)
            return figures(loss, outputs, batch)._replace(terms=[float(term) * batch.total for term in terms.values()])

    def rehearse(self, batch: Batch) -> Sequence[str]:
        with as_usage_errors():
            self.loss_and_gradient(batch)
            self.evaluate(batch)
        return ()

    def constants(self) -> dict[str, np.ndarray]:
        return dict(self._tree.constants)

    def load_constants(self, constants: Mapping[str, np.ndarray]) -> None:
        for name, array in self._tree.constants.items():
            array[...] = constants[name]


def figures(loss: Any, outputs: Any, batch: Batch) -> Evaluation:
    """Return the evaluation of a batch with this mean loss and these outputs, None if unknown."""
    known = None if outputs is None else np.asarray(outputs)
    correct, counted = _correct(outputs, batch.targets, batch.own_weight)
    return Evaluation(float(loss) * batch.total, correct, known, counted=counted)


def _correct(outputs: Any, targets: Any, weight: float | None) -> tuple[float, float | None]:
    """Return the number of correct predictions and that of all; NaN where correctness has no meaning."""
    if not isinstance(outputs, jax.Array) or not jnp.issubdtype(getattr(targets, "dtype", float), jnp.integer):
        return float("nan"), None
    if outputs.shape[:-1] != targets.shape or outputs.shape[-1:] == (1,):
        return float("nan"), None
    return correct_classes(np.asarray(outputs), np.asarray(targets), -1, weight)


def _found(value: Any) -> str:
    """Describe a value for an error."""
    return f"{value.dtype} of shape {value.shape}" if isinstance(value, jax.Array) else kind_of(value)
