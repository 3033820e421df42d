"""Cases of small modules, and the data that each takes."""

from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from mpidl.data import Arrays

SAMPLES, CLASSES, SEED = 12, 3, 3

#: Shapes of samples by kind; ids are below `IDS`.
SHAPES = {"vector": (6,), "image": (3, 8, 8), "sequence": (5, 4), "ids": (5,)}
IDS = 7


class Case(NamedTuple):
    """How to make a module and a loss, and the kind of its samples.

    `local` if its process alone knows all its state: other ranks have its tensors only.
    """

    make: object
    kind: str
    loss: object = functional.cross_entropy
    local: bool = False

    def made(self):
        """Return a new module and its loss, always with the same values, in float64."""
        torch.manual_seed(SEED)
        module = self.make().double()
        return module, self.loss().double() if isinstance(self.loss, type) else self.loss

    def samples(self):
        """Return inputs and targets."""
        random, shape = np.random.default_rng(1), (SAMPLES, *SHAPES[self.kind])
        inputs = random.integers(1, IDS, shape) if self.kind == "ids" else random.normal(size=shape)
        return inputs, np.arange(SAMPLES) % CLASSES

    def data(self):
        """Return the samples as data to train with."""
        inputs, targets = self.samples()
        return Arrays((inputs, targets), (inputs[:4], targets[:4]))


ZOO: dict[str, Case] = {}


def zoo(kind, loss=functional.cross_entropy, *, local=False):
    """Add a class, or a function that makes a module, to `ZOO` under its name; a class of losses is made, too."""

    def add(make):
        ZOO[make.__name__] = Case(make, kind, loss, local)
        return make

    return add


def head(width, *before):
    """Return layers, and a last one that classifies."""
    return nn.Sequential(*before, nn.Linear(width, CLASSES))


def pooled(*before, width):
    """Return layers of images, and a last one that classifies their means."""
    return nn.Sequential(*before, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))
