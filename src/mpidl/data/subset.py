"""Subsets of a split's samples, and validation splits made from them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Batch, outside
from mpidl.data.dataset import Dataset, Split
from mpidl.errors import UsageError

#: Separates the choice of validation samples from the order of the data, which has the same seed.
STREAM = 0x76616C


class Subset(Split):
    """The samples of another split with these indices, (samples,) of int64. Nothing else gathers from that split."""

    def __init__(self, split: Split, chosen: NDArray[np.int64]) -> None:
        self.samples, self.contiguous, self.chunk = len(chosen), split.contiguous, split.chunk
        self.lookahead = split.lookahead
        self._split, self._chosen = split, chosen

    def load(self) -> None:
        self._split.load()

    def prefetch(self, indices: NDArray[np.int64]) -> None:
        self._split.prefetch(self._chosen[indices])

    def prepare(self, indices: NDArray[np.int64], epoch: int = 0) -> None:
        self._split.prepare(self._chosen[indices], epoch)

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> Batch:
        if indices.min() < 0:
            raise outside(indices, 0, self.samples)
        return self._split.gather(self._chosen[indices], epoch)

    def labels(self, start: int, stop: int) -> NDArray[np.integer] | None:
        of_all = self._split.labels(0, self._split.samples)
        return None if of_all is None else of_all[self._chosen[start:stop]]

    def copy(self) -> Subset:
        return Subset(self._split.copy(), self._chosen)

    def as_integers(self) -> Subset:
        return Subset(self._split.as_integers(), self._chosen)

    def as_double(self) -> Subset:
        return Subset(self._split.as_double(), self._chosen)


def held_out(dataset: Dataset, share: float | None, portion: int, seed: int) -> Dataset:
    """Return the dataset with a share of its training samples as the validation split, or itself if `share` is None.

    The samples are chosen at random: whole portions, of this number of samples, where neighbours are read together.

    Raises
    ------
    UsageError
        The data already have a validation split, or too few training samples, for one of their owners for instance.
    """
    if share is None:
        return dataset
    if dataset.validation is not None:
        raise UsageError(f"data.validation: {share:g}, but the data have a validation split of their own")
    if dataset.order is not None:
        raise UsageError(
            f"data.validation: {share:g}, but the data have a sampler for all training samples, expected "
            "mpidl.Indexed(validation=...)"
        )
    train, samples = dataset.train, dataset.train.samples
    if samples < 2:
        raise UsageError(f"data.validation: {share:g} of {samples} training sample, expected at least 2 samples")
    chosen = _chosen(samples, share, portion if train.contiguous else 1, seed)
    rest = np.flatnonzero(~chosen)
    owners = dataset.owners
    if owners is not None:
        counts = np.bincount(owners[rest], minlength=owners.max() + 1)
        if not counts.all():
            raise UsageError(f"data.validation: {share:g} takes all training samples of worker {counts.argmin()}")
        owners = owners[rest]
    held_out = Subset(train.copy(), np.flatnonzero(chosen))
    return replace(dataset, train=Subset(train, rest), validation=held_out, owners=owners)


def _chosen(samples: int, share: float, block: int, seed: int) -> NDArray[np.bool_]:
    """Return a mask of random samples: blocks of neighbours if there are enough for the share, else single ones."""
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(STREAM,)))
    chosen = np.zeros(samples, bool)
    blocks = samples // block
    if not 0 < round(share * blocks) < blocks:
        block, blocks = 1, samples
    count = min(max(1, round(share * blocks)), blocks - 1)
    # The whole blocks: a shorter one at the end of the data stays there.
    chosen[: blocks * block].reshape(blocks, block)[random.permutation(blocks)[:count]] = True
    return chosen
