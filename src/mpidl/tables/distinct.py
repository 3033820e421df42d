"""The hash of ids; distinct ids of a batch, those of each server together; and sums of gradients by id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mpidl.jit import jit


class Distinct(NamedTuple):
    """Distinct ids, grouped by the server that has their rows.

    Attributes
    ----------
    ids : array (n,) of int64
        Those of the first server, then those of the next, each in the order of their first appearance.
    parts : sequence of slice
        The place of each server's ids.
    places : array of int32
        The place in `ids` of each of the ids from which they were made.
    """

    ids: np.ndarray
    parts: Sequence[slice]
    places: np.ndarray


def distinct(ids: np.ndarray, servers: int) -> Distinct:
    """Return the distinct ones among ids, int64 (n,), grouped by server."""
    size = 1 << max(4, (2 * ids.size - 1).bit_length())
    slots = np.full(size, -1, np.int32)
    first, owners = np.empty(ids.size, np.int32), np.empty(ids.size, np.int32)
    starts = np.zeros(servers + 1, np.int64)
    count = _find(ids, slots, first, owners, starts)
    places = np.empty(ids.size, np.int32)
    found = np.empty(count, np.int64)
    np.cumsum(starts, out=starts)
    _group(ids, first, owners, starts.copy(), found, places)
    return Distinct(
        found, [slice(*each) for each in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)], places
    )


def owner(ids: np.ndarray, servers: int) -> np.ndarray:
    """Return the number of the server that has the row of each id, int64 (n,)."""
    found = np.empty(ids.size, np.int32)
    _owners(ids, servers, found)
    return found


def add_to(rows: np.ndarray, places: np.ndarray, values: np.ndarray) -> None:
    """Add each of `values`, (n, dimension), to the row of `rows`, (m, dimension), at its place, in order."""
    _add(rows, places, np.ascontiguousarray(values))


@jit
def mixed(number: Any) -> Any:
    """Return the hash of a 64-bit number.

    G. Steele, D. Lea, C. Flood 2014, Fast splittable pseudorandom number generators, with the constants of Java 8.
    """
    found = np.uint64(number) + np.uint64(0x9E3779B97F4A7C15)
    found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return found ^ (found >> np.uint64(31))


@jit
def _owner(hashed: Any, servers: int) -> Any:
    """Return a server by the upper bits of an id's hash; the lower ones are its bucket there."""
    return np.int32(((hashed >> np.uint64(32)) * np.uint64(servers)) >> np.uint64(32))


@jit
def _owners(ids: Any, servers: int, found: Any) -> None:
    for i in range(ids.size):
        found[i] = _owner(mixed(ids[i]), servers)


@jit
def _find(ids: Any, slots: Any, first: Any, owners: Any, counts: Any) -> int:
    """Number distinct ids in the order of their appearance, and return how many there are.

    `slots`, a hash table, gets the place of each one's first appearance; there, `first` gets its number, and `owners`
    its server. For an id that has appeared before, `first` gets -1 - the place of the first appearance.
    """
    last, number, servers = np.uint64(slots.size - 1), 0, counts.size - 1
    for i in range(ids.size):
        hashed = mixed(ids[i])
        slot = hashed & last
        while slots[slot] >= 0 and ids[slots[slot]] != ids[i]:
            slot = (slot + np.uint64(1)) & last
        if slots[slot] >= 0:
            first[i] = -1 - slots[slot]
            continue
        slots[slot], first[i] = i, number
        own = _owner(hashed, servers)
        owners[i] = own
        counts[own + 1] += 1
        number += 1
    return number


@jit
def _group(ids: Any, first: Any, owners: Any, starts: Any, found: Any, places: Any) -> None:
    """Write distinct ids, grouped by server, and the place of each id among them."""
    for i in range(ids.size):
        if first[i] >= 0:
            place = starts[owners[i]]
            starts[owners[i]] += 1
            found[place], places[i] = ids[i], place
        else:
            places[i] = places[-1 - first[i]]


@jit
def _add(rows: Any, places: Any, values: Any) -> None:
    for i in range(places.size):
        place = places[i]
        for j in range(rows.shape[1]):
            rows[place, j] += values[i, j]
