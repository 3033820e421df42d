"""Portions: which samples each one consists of, computed from its number alone, the same on every rank."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Minibatch
from mpidl.errors import UsageError

CACHED_EPOCHS = 2  # a worker takes the next epoch's first portion while it works on this one's last


class Portions:
    """Divides every epoch's random order of the samples into portions, and these into batches.

    An epoch takes every sample exactly once. Its order is a permutation of all samples that depends only on the seed
    and the epoch. If `contiguous`, a portion is a block of neighbours: the order of the blocks is permuted (except that
    a shorter block at the end of the data comes last), and so are the samples within each block.

    Parameters
    ----------
    samples : int
        Number of samples.
    batch : int
        Samples per batch. An epoch's last batch may have fewer.
    portion : int
        Samples per portion, a multiple of `batch`. An epoch's last portion may have fewer.
    seed : int
        Not negative.
    contiguous : bool
        See `Split.contiguous`.

    Attributes
    ----------
    per_epoch : int
        Number of portions per epoch.

    Raises
    ------
    UsageError
        If `portion` isn't a multiple of `batch`.
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
        """Return the indices of the samples of portion `number`, in the order of their use.

        Parameters
        ----------
        number : int
            Number of the portion, from 0, counted over all epochs.

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
        """Return the minibatches of portion `number`."""
        first, epoch = number * (self.portion // self.batch), self.epoch(number)
        return [Minibatch(indices, first + i, epoch) for i, indices in enumerate(self.batches(number))]

    def _order(self, epoch: int) -> NDArray[np.int64]:
        """Return the order of the epoch's samples or, if portions are contiguous, of its blocks."""
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
