"""Datasets of a user's own, of a module that worker processes can import."""

import os
import random
import signal
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import h5py
import numpy as np

from mpidl.data import Batch, Indexed


class Numbers:
    """Samples that are their own number; `broken` is what happens at sample 7, or that sample."""

    def __init__(self, samples=20, broken="", seconds=0.0):
        self.samples, self.broken, self.seconds = samples, broken, seconds

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        time.sleep(self.seconds)
        if index == 7 and self.broken == "raises":
            raise KeyError("no such event")
        if index == 7 and self.broken == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if index == 7 and not isinstance(self.broken, str):
            return self.broken
        return np.full(3, index, np.float32), index % 2


class Opened(Numbers):
    """Samples of an HDF5 file, which is opened when one of them, or their number, is asked for first."""

    def __init__(self, path):
        self.path, self.file = str(path), None

    def __len__(self):
        self._open()
        return len(self.file["x"])

    def __getitem__(self, index):
        self._open()
        return self.file["x"][index], index % 2

    @property
    def targets(self):
        return np.arange(len(self)) % 2

    def _open(self):
        if self.file is None:
            self.file = h5py.File(self.path)


class Tokens(Numbers):
    """Samples as those of Hugging Face's datasets: mappings of lists, with the target among them."""

    def __init__(self, key="labels"):
        super().__init__()
        self.key = key

    def __getitem__(self, index):
        return {"input_ids": [index, 7], self.key: index % 3, "attention_mask": [1, 0]}


class Rows(Numbers):
    """Samples of unequal size: as many ones as the number says, and one more."""

    def __getitem__(self, index):
        return np.ones(index + 1, np.float32)


class Noise(Numbers):
    """Samples that are different each time."""

    def __getitem__(self, index):
        return np.array([np.random.random(), random.random()]), 0  # noqa: NPY002


class Log(Numbers):
    """Samples that leave a line in a file whenever they are read."""

    def __init__(self, file, samples):
        super().__init__(samples)
        self.file = str(file)

    def __getitem__(self, index):
        with open(self.file, "a") as file:
            file.write(f"{index}\n")
        return super().__getitem__(index)


def join(samples):
    """Return the rows end to end with their lengths, weighed by their elements."""
    return (np.concatenate(samples), np.array([len(each) for each in samples])), None, sum(map(len, samples))


def as_batch(samples):
    """Return what `join` does, as a batch."""
    inputs, targets, weight = join(samples)
    return Batch(inputs, targets, weight=weight)


def not_a_batch(samples):
    """Return something else."""
    return {"x": samples}


def as_pair(samples):
    """Return two stacked arrays, of samples (input, target)."""
    return np.stack([each[0] for each in samples]), np.array([0 + each[1] for each in samples])


def masked(samples):
    """Return a batch with a masked value."""
    return (np.ma.masked_equal([1.0, 2.0], 2.0), np.zeros(2)), np.zeros(2)


def objects(samples):
    """Return a batch with an object that has no bits."""
    return (*as_pair(samples)[:1], [object()])


class Point(NamedTuple):
    """A part of a sample or batch."""

    x: Any
    y: Any


@dataclass(frozen=True)
class Frozen:
    """Another one."""

    name: Any
    more: Any


class Line:
    """A model with a single parameter."""

    parameters = np.zeros(1, np.float32)

    def loss_and_gradient(self, batch):
        return 0.0, np.zeros(1, np.float32)


def elements(inputs, targets):
    """Return a batch's number of elements."""
    return inputs.size


def nothing(inputs, targets):
    """Return no weight."""
    return 0


def words(inputs, targets):
    """Return what is no number."""
    return "many"


def make():
    """Return a dataset, as `data.factory` asks for it."""
    return Indexed(Numbers(), Numbers(4))
