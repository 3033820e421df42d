"""Which ids get rows: those that were updated often enough, or each with a probability."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.errors import UsageError
from mpidl.jit import jit
from mpidl.tables.distinct import mixed

#: Most touches: counters are bytes.
MOST = 255
#: Counters of a filter, at least; a power of 2.
COUNTERS = 1 << 20


def admission(needed: float, seed: np.uint64, max_rows: int | None) -> Touches | Chance:
    """Return the admission after `needed` touches, or by a probability below 1."""
    if 0 < needed < 1:
        return Chance(needed, seed)
    if not 1 <= needed <= MOST or needed != int(needed):
        raise UsageError(f"admission of {needed}, expected a probability below 1, or 1 to {MOST} touches")
    return Touches(int(needed), max_rows)


class Touches:
    """The touch number `needed` of an id admits it.

    Touches are counted in bytes that ids share, each having two, of which the lower one counts; only that is increased
    (C. Estan, G. Varghese 2002, New directions in traffic measurement and accounting: conservative update). So an id
    may be admitted early, but never late, except that counts age: each touch halves one byte in turn, so that ids
    which are rare for ever don't fill the filter (G. Einziger et al. 2017, TinyLFU). `state` has the counters.
    """

    def __init__(self, needed: int, max_rows: int | None) -> None:
        size = max(COUNTERS, 1 << (2 * (max_rows or 0)).bit_length())
        self._needed = needed
        # The last 8 bytes are the place of the next one to halve.
        self.state = np.zeros(size + 8, np.uint8)

    def admit(self, ids: np.ndarray, step: int) -> np.ndarray:
        """Return which of the distinct ids without a row, int64 (n,), that an update touches get one, bool (n,)."""
        admitted = np.empty(ids.size, np.bool_)
        touch(self.state[:-8], self.state[-8:].view(np.int64), self._needed, ids, admitted)
        return admitted


class Chance:
    """Each touch of an id admits it with a probability: a function of the seed, the id and the update's number."""

    def __init__(self, probability: float, seed: np.uint64) -> None:
        self._probability, self._seed = probability, seed
        self.state = np.zeros(0, np.uint8)

    def admit(self, ids: np.ndarray, step: int) -> np.ndarray:
        admitted = np.empty(ids.size, np.bool_)
        draw(self._seed, step, self._probability, ids, admitted)
        return admitted


@jit
def touch(counters: Any, hand: Any, needed: int, ids: Any, admitted: Any) -> None:
    last = np.uint64(counters.size - 1)
    for i in range(ids.size):
        # Not the hash by which servers own ids, whose upper bits are the same on a server.
        hashed = mixed(mixed(ids[i]))
        one, other = hashed & last, (hashed >> np.uint64(32)) & last
        count = min(counters[one], counters[other]) + 1
        admitted[i] = count >= needed
        if not admitted[i]:
            counters[one], counters[other] = max(counters[one], count), max(counters[other], count)
        counters[hand[0]] >>= 1
        hand[0] = (hand[0] + 1) % counters.size


@jit
def draw(seed: Any, step: int, probability: float, ids: Any, admitted: Any) -> None:
    base = mixed(seed ^ mixed(step))
    for i in range(ids.size):
        admitted[i] = np.float64(mixed(base ^ mixed(ids[i])) >> np.uint64(11)) * 2.0**-53 < probability
