"""What the coordinator may tell every server to do with the vectors of its shard (Dean et al. 2012, section 4.2).

Vectors have names and lie on the shards, each server having its part; only scalars travel. A server carries out the
operations of one request in their order.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The vector that workers fetch.
PARAMETERS = "parameters"


@dataclass(frozen=True, slots=True)
class Dot:
    """Inner products of pairs of vectors. Result: a float for each pair, summed over the shards."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Combine:
    """target = sum of factor * vector over `terms`, which may have the target itself among them; without any, 0."""

    target: str
    terms: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Multiply:
    """target = target * vector, coefficient by coefficient."""

    target: str
    vector: str


Operation = Dot | Combine | Multiply


def copy(target: str, vector: str) -> Combine:
    """Return the operation target = vector."""
    return Combine(target, ((1.0, vector),))
