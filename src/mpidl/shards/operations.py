"""A coordinator's operations on the named vectors of all shards (Dean et al. 2012, section 4.2).

Every server has its part of each vector, and only scalars travel. A server executes the operations of one request in
order.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Name of the vector that workers fetch.
PARAMETERS = "parameters"


@dataclass(frozen=True, slots=True)
class Dot:
    """Inner products of pairs of vectors: a float for each pair, summed over the shards."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Combine:
    """target = sum of factor * vector over `terms`, which may include the target itself; 0 without terms."""

    target: str
    terms: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Multiply:
    """target = target * vector, element by element."""

    target: str
    vector: str


Operation = Dot | Combine | Multiply


def copy(target: str, vector: str) -> Combine:
    """Return the operation target = vector."""
    return Combine(target, ((1.0, vector),))
