"""Carrying out a coordinator's operations on the named vectors of one shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mpidl.rules import Sgd
from mpidl.shards.operations import Combine, Dot, Multiply, Operation
from mpidl.shards.state import BLOCK


class Vectors:
    """Carries out a coordinator's operations on one shard.

    Parameters
    ----------
    vectors : mapping of str to array (n,)
        NumPy or CuPy vectors by name, changed in place. A name is looked up anew in every operation.
    block : int, optional
        Number of elements that are worked on at a time; None means all of them.
    """

    _adding = Sgd()

    def __init__(self, vectors: Mapping[str, Any], block: int | None = BLOCK) -> None:
        self._vectors = vectors
        any_vector = next(iter(vectors.values()))
        size = any_vector.size
        block = max(1, size) if block is None else block
        self._blocks = [slice(start, min(start + block, size)) for start in range(0, size, block)]
        self._sum = np.empty_like(any_vector[:block])

    def __getitem__(self, name: str) -> Any:
        return self._vectors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._vectors)

    def rehearse(self) -> None:
        """Compile what operations need: carry them out on a vector of one element."""
        one = Vectors({"one": np.zeros_like(self._sum[:1])})
        one.carry_out((Dot((("one", "one"),)), Combine("one", ((1.0, "one"),)), Multiply("one", "one")))

    def carry_out(self, operations: Iterable[Operation]) -> list[float]:
        """Carry out operations in their order and return this shard's part of their results."""
        results: list[float] = []
        for operation in operations:
            match operation:
                case Dot(pairs):
                    results += self._dots(pairs)
                case Combine(target, terms):
                    self._combine(self._vectors[target], terms)
                case Multiply(target, vector):
                    product = self._vectors[target]
                    product *= self._vectors[vector]
        return results

    def _dots(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        vectors = [(self._vectors[a], self._vectors[b]) for a, b in pairs]
        totals = [0.0] * len(pairs)
        for block in self._blocks:
            for i, (a, b) in enumerate(vectors):
                totals[i] += float(np.dot(a[block], b[block]))
        return totals

    def _combine(self, target: Any, terms: Sequence[tuple[float, str]]) -> None:
        vectors = [(factor, self._vectors[name]) for factor, name in terms]
        for block in self._blocks:
            out = target[block]
            total = self._sum[: out.size]
            total.fill(0)
            for factor, vector in vectors:
                self._adding.update(total, (), vector[block], 1, -factor)
            out[:] = total
