"""Checksums of data: cheap however large the data are, the same on every rank, and different for other data."""

import numpy as np
import pytest

from mpidl.data import ArraySplit, Synthetic
from mpidl.data.dataset import SAMPLES_PER_CHECKSUM, Split


class Huge(Split):
    """Samples that are made when they are read."""

    samples = 10**12

    def __init__(self, shift=0):
        self.shift, self.read = shift, 0

    def gather(self, indices, epoch=0):
        self.read += len(indices)
        return ArraySplit(np.full((1, 3), float(indices[0] % 7 + self.shift)), np.zeros(1, int)).gather(np.array([0]))


def test_few_samples_are_read():
    split = Huge()
    assert split.checksum() == Huge().checksum() != Huge(shift=1).checksum()
    assert split.read == SAMPLES_PER_CHECKSUM


def split(samples=100, label=3, value=0.0):
    inputs, labels = np.zeros((samples, 4), np.float32), np.zeros(samples, int)
    labels[41], inputs[-1] = label, value
    return ArraySplit(inputs, labels)


@pytest.mark.parametrize("other", [split(samples=101), split(label=4), split(value=1.0)])
def test_other_data_have_another_checksum(other):
    assert split().checksum() == split().checksum() != other.checksum()


def test_synthetic_data_of_one_seed_are_the_same():
    def made(seed):
        return Synthetic(shape=(3,), classes=2, samples=50, test_samples=5, seed=seed).open().train.checksum()

    assert made(0) == made(0) != made(1)
