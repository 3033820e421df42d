"""A coordinator's operations on the named vectors of all shards (Dean et al. 2012, section 4.2), and their execution.

Every server has its part of each vector, and only scalars travel, except with the operations of `mpidl.shards.matrix`.
A server executes the operations of one request in order, and accrues gradients in the vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from math import fsum
from operator import or_
from typing import Any, Protocol

import numpy as np
from msgspec import Struct

from mpidl.parameters.ranges import Range
from mpidl.rules import Sgd
from mpidl.shards.state import BLOCK

#: A step of this rule with rate -f adds f times a vector.
ADDING = Sgd()


class Dot(Struct, frozen=True):
    """Inner products of pairs of vectors: a float for each pair, summed over the shards."""

    pairs: tuple[tuple[str, str], ...]

    def carry_out(self, vectors: Vectors) -> list[Result]:
        pairs = [(vectors[a], vectors[b]) for a, b in self.pairs]
        totals = [0.0] * len(pairs)
        for block in vectors.blocks:
            for i, (a, b) in enumerate(pairs):
                totals[i] += float(np.dot(a[block], b[block]))
        return [*totals]


class Combine(Struct, frozen=True):
    """target = sum of factor * vector over `terms`, which may include the target itself; 0 without terms."""

    target: str
    terms: tuple[tuple[float, str], ...] = ()

    def carry_out(self, vectors: Vectors) -> list[Result]:
        target, terms = vectors[self.target], [(factor, vectors[name]) for factor, name in self.terms]
        for block in vectors.blocks:
            out = target[block]
            total = vectors.scratch[: out.size]
            total.fill(0)
            for factor, vector in terms:
                ADDING.update(total, (), vector[block], 1, -factor)
            out[:] = total
        return []


class Multiply(Struct, frozen=True):
    """target = target * vector, element by element."""

    target: str
    vector: str

    def carry_out(self, vectors: Vectors) -> list[Result]:
        product = vectors[self.target]
        product *= vectors[self.vector]
        return []


#: Parts of a vector, by the place of the first element of each.
Pieces = dict[int, np.ndarray]
#: What a shard returns of an operation.
Result = float | Pieces


class Operation(Protocol):
    """An operation on a shard's vectors. One that changes a vector or a matrix has its name as `target`."""

    def carry_out(self, vectors: Vectors) -> list[Result]:
        """Execute the operation and return this shard's part of its results."""
        ...


def merged(answers: Iterable[Sequence[Result]]) -> list[Result]:
    """Return the results of operations, given those of each shard: sums of floats, and all pieces of vectors."""
    found: list[Result] = []
    for parts in zip(*answers, strict=True):
        found.append(reduce(or_, parts) if isinstance(parts[0], dict) else fsum(parts))
    return found


def copy(target: str, vector: str) -> Combine:
    """Return the operation target = vector."""
    return Combine(target, ((1.0, vector),))


class Vectors:
    """Executes a coordinator's operations on one shard.

    The NumPy or CuPy vectors, (n,) by name, and matrices, (n, columns), are changed in place; every operation looks its
    names up again. It processes `block` elements at a time, or all of them, which `blocks` lists; `scratch` has the
    size of one. `start` is the place of the shard's first element in the whole vector.
    """

    def __init__(self, vectors: Mapping[str, Any], block: int | None = BLOCK, start: int = 0) -> None:
        self._vectors, self.start = vectors, start
        any_vector = next(iter(vectors.values()))
        size = len(any_vector)
        self.range = Range(start, start + size)
        block = max(1, size) if block is None else block
        self.blocks = [slice(start, min(start + block, size)) for start in range(0, size, block)]
        self.scratch = np.empty_like(any_vector[:block])

    def __getitem__(self, name: str) -> Any:
        return self._vectors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._vectors)

    def rehearse(self) -> None:
        """Compile the operations by executing them on a vector of one element."""
        one = Vectors({"one": np.zeros_like(self.scratch[:1])})
        one.carry_out((Dot((("one", "one"),)), Combine("one", ((1.0, "one"),)), Multiply("one", "one")))

    def carry_out(self, operations: Iterable[Operation]) -> list[Result]:
        """Execute operations in order and return this shard's part of their results."""
        results: list[Result] = []
        for operation in operations:
            results += operation.carry_out(self)
        return results

    def view(self, name: str, part: Range) -> Any:
        """Return a part of a vector that lies in this shard, by its place in the whole vector."""
        return self._vectors[name][slice(*part.shift(-self.range.start))]


class Accrual:
    """Adds the gradients of units to vectors of one shard, each exactly once even if workers send it twice.

    Parameters
    ----------
    pieces : list of Range
        The chunks, within the shard.

    Attributes
    ----------
    evaluation : int
        Number of the evaluation. Chunks of other evaluations are dropped.
    complete : int
        Number of complete units.
    losses, weights : array, shape (units,)
        For each complete unit, the sum of its batches' losses, each times the batch's weight, and of these weights.
    """

    def __init__(self, vectors: Vectors, pieces: Sequence[tuple[int, int]]) -> None:
        self._vectors, self._slices = vectors, [slice(*piece) for piece in pieces]
        self.evaluation = self.complete = 0
        self._targets: Sequence[str] = ()
        self._accrued = np.zeros((0, len(pieces)), bool)
        self.losses, self.weights = np.zeros(0), np.zeros(0)

    def begin(self, evaluation: int, vectors: Iterable[str], targets: Sequence[str]) -> None:
        """Set the named `vectors` to 0, and expect the units of an evaluation, each for the vector in `targets`."""
        self.evaluation, self.complete = evaluation, 0
        for name in vectors:
            self._vectors[name].fill(0)
        self._targets = targets
        self._accrued = np.zeros((len(targets), len(self._slices)), bool)
        self.losses, self.weights = np.zeros(len(targets)), np.zeros(len(targets))

    def add_chunk(self, evaluation: int, unit: int, chunk: int, values: Any, loss: float, weight: float) -> bool:
        """Add one chunk of a unit's gradient, unless it has been added before; return whether it completed the unit.

        Parameters
        ----------
        evaluation, unit, chunk : int
            Numbers of the evaluation, of the unit in it, and of the chunk.
        values : array, shape (chunk's size,)
        loss, weight : float
            The unit's elements of `losses` and `weights`, the same with every chunk.
        """
        if evaluation != self.evaluation or self._accrued[unit, chunk]:
            return False
        self._accrued[unit, chunk] = True
        target = self._vectors[self._targets[unit]]
        ADDING.update(target[self._slices[chunk]], (), values, 1, -1.0)
        if not self._accrued[unit].all():
            return False
        self.complete += 1
        self.losses[unit], self.weights[unit] = loss, weight
        return True

    def state(self) -> dict[str, np.ndarray]:
        """Return the state between two chunks except the vectors: counters of int64, losses and weights."""
        names = list(self._vectors)
        return {
            "evaluation": np.array(self.evaluation),
            "complete": np.array(self.complete),
            "targets": np.array([names.index(name) for name in self._targets], np.int64),
            "accrued": self._accrued.astype(np.int64),
            "losses": self.losses,
            "weights": self.weights,
        }

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Copy the `state` of another instance with vectors of the same names."""
        names = list(self._vectors)
        self.evaluation, self.complete = int(state["evaluation"]), int(state["complete"])
        self._targets = [names[number] for number in state["targets"].tolist()]
        self._accrued = state["accrued"].astype(bool)
        self.losses, self.weights = state["losses"].copy(), state["weights"].copy()

    def has(self, unit: int) -> bool:
        """Tell whether a unit is complete."""
        return bool(self._accrued[unit].all())

    def unfinished(self) -> np.ndarray:
        """Return the numbers of the incomplete units."""
        return np.flatnonzero(~self._accrued.all(axis=1))
