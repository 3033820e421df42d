"""Which samples a portion has: arithmetic on a portion's number, the same on every rank."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Minibatch
from mpidl.errors import UsageError

CACHED_EPOCHS = 2  # a worker asks for the next epoch's first portion while it still works on this one's last


class Portions:
    """Cuts every epoch's seeded order of the samples into portions, and these into batches.

    An epoch takes every sample exactly once. Without `contiguous` its order is one permutation of all
    samples, and depends on nothing but the seed and the epoch. With it, a portion is a block of neighbours:
    the blocks come in a permuted order (a shorter block at the end of the data comes last), and the samples
    within each are permuted.

    Parameters
    ----------
    samples : int
    batch : int
        Samples of a batch. An epoch's last batch may have fewer.
    portion : int
        Samples of a portion, a multiple of `batch`. An epoch's last portion may have fewer.
    seed : int
        Not negative.
    contiguous : bool
        As `Split.contiguous`.

    Attributes
    ----------
    per_epoch : int
        Portions of an epoch.

    Raises
    ------
    UsageError
        `portion` is no multiple of `batch`.
    """

    def __init__(self, samples: int, batch: int, portion: int, seed: int, contiguous: bool = False) -> None:
        if portion < 1 or portion % batch:
            raise UsageError(f"data.portion: {portion}, expected a multiple of data.batch ({batch})")
        self.samples = samples
        self.batch = batch
        self.portion = portion
        self.seed = seed
        self.contiguous = contiguous
        self.per_epoch = -(-samples // portion)
        self._orders: dict[int, NDArray[np.int64]] = {}

    def epoch(self, number: int) -> int:
        """Return the epoch, from 0, of portion `number`."""
        return number // self.per_epoch

    def indices(self, number: int) -> NDArray[np.int64]:
        """Return the samples of portion `number`, in order of use.

        Parameters
        ----------
        number : int
            From 0, counted over all epochs.

        Returns
        -------
        array (n,) of int64
            Read-only.
        """
        epoch, place = divmod(number, self.per_epoch)
        if not self.contiguous:
            return self._order(epoch)[place * self.portion : (place + 1) * self.portion]
        block = int(self._order(epoch)[place])
        start = block * self.portion
        size = min(self.portion, self.samples - start)
        return _fixed(start + self._random(epoch, block).permutation(size))

    def batches(self, number: int) -> list[NDArray[np.int64]]:
        """Return the batches of portion `number`: views of its indices, in order."""
        indices = self.indices(number)
        return [indices[start : start + self.batch] for start in range(0, len(indices), self.batch)]

    def minibatches(self, number: int) -> list[Minibatch]:
        """Return the batches of portion `number`, with their place in the run."""
        first, epoch = number * (self.portion // self.batch), self.epoch(number)
        return [Minibatch(indices, first + i, epoch) for i, indices in enumerate(self.batches(number))]

    def _order(self, epoch: int) -> NDArray[np.int64]:
        """Return the order of the epoch's samples or, where portions are contiguous, of its blocks."""
        order = self._orders.get(epoch)
        if order is None:
            if len(self._orders) == CACHED_EPOCHS:
                del self._orders[min(self._orders)]
            order = self._orders[epoch] = _fixed(self._permutation(epoch))
        return order

    def _permutation(self, epoch: int) -> NDArray[np.int64]:
        if not self.contiguous:
            return self._random(epoch).permutation(self.samples)
        whole = self.samples // self.portion
        order = np.arange(self.per_epoch)
        order[:whole] = self._random(epoch).permutation(whole)
        return order

    def _random(self, *key: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))


def _fixed(array: NDArray[np.int64]) -> NDArray[np.int64]:
    array.flags.writeable = False
    return array
