"""The named vectors of one shard, and what a coordinator's operations do with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
        By name, NumPy's or CuPy's; changed in place.
    block : int, optional
        Elements that are worked on at a time; all of them if not given.
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

    def rehearse(self) -> None:
        """Compile what operations need, by carrying them out on one element of nobody's."""
        one = Vectors({"one": np.zeros_like(self._sum[:1])})
        one.carry_out((Dot((("one", "one"),)), Combine("one", ((1.0, "one"),)), Multiply("one", "one")))

    def carry_out(self, operations: Iterable[Operation]) -> list[float]:
        """Carry out operations in their order; return this shard's part of the results."""
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
