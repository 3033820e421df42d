"""A stream of clicks that is made as it is read, with a known teacher."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Annotated, ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Batch, outside
from mpidl.data.builtin import Made
from mpidl.data.click_log import FEATURES, NUMBERS
from mpidl.data.dataset import Dataset, Split

#: Numbers are between 0 and about e^7: their logarithms are uniform.
LARGEST_LOGARITHM = 7.0
#: Mean of the logits, their standard deviation, and the shares of their variance: of numbers, ids, and pairs of ids.
MEAN, DEVIATION, SHARES = -1.2, 1.4, (0.35, 0.63, 0.02)
#: Samples from which the parts of the logits get this mean and these variances.
SCALING = 1 << 14
GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class Clicks(Made):
    """A stream of clicks, which is made as it is read: 13 numbers, 26 ids and whether there was a click.

    Inputs are (39,) int64: first 13 numbers, counts from 0 to about 1000 whose logarithms are uniform, then an id for
    each of 26 features. Ids of different features differ. The ids of a feature follow Zipf's law with exponent 1.05.
    Targets are (1,), 1 for a click, for one output and the loss ``one_vs_all_logistic``.

    A click has the probability that a teacher's logit stands for: a sum of the numbers' logarithms, of a random weight
    for each id, and of products of two-dimensional vectors for the ids of two pairs of features. The weights of rare
    ids are small, so that all can be learnt but the chance itself; the teacher's area under the curve is about 0.8.
    ``dataset.test.teacher(indices)`` returns its logits.

    Attributes
    ----------
    samples, test_samples : int
        Numbers of training and of test samples, which are distinct.
    ids : int
        Number of ids of all features together, each of which has an equal part of them. They are in [0, ids).
    seed : int
        Seed of the samples and of the teacher.
    """

    name: ClassVar[str] = "clicks"
    samples: Annotated[int, msgspec.Meta(ge=1)] = 10_000_000
    test_samples: Annotated[int, msgspec.Meta(ge=1)] = 100_000
    ids: Annotated[int, msgspec.Meta(ge=FEATURES, le=2_000_000_000)] = 10_000_000

    def open(self) -> Dataset:
        stream = Stream(self)
        train, test = ClicksSplit(stream, self.samples), ClicksSplit(stream, self.test_samples, of_test=True)
        return Dataset(self.name, (NUMBERS + FEATURES,), None, train, test)


class Drawn(NamedTuple):
    """Samples: inputs (n, 39), parts of the teacher's logits (n, 3), and random numbers (n,) in [0, 1)."""

    inputs: NDArray[np.int64]
    parts: NDArray[np.float64]
    uniforms: NDArray[np.float64]

    @classmethod
    def empty(cls, size: int) -> Drawn:
        """Return memory for a number of samples."""
        return cls(np.empty((size, NUMBERS + FEATURES), np.int64), np.empty((size, 3)), np.empty(size))


class Stream:
    """All samples by their numbers, which may be negative, and the teacher."""

    def __init__(self, source: Clicks) -> None:
        from mpidl.data.click_draws import LEVELS, WEIGHTS, draw, mixed

        random = np.random.default_rng(source.seed)
        ids = source.ids // FEATURES
        stride = round(GOLDEN * ids * FEATURES)
        while gcd(stride, ids * FEATURES) > 1:
            stride += 1
        counts = np.exp(LARGEST_LOGARITHM * (np.arange(LEVELS) + 0.5) / LEVELS).astype(np.int64) - 1
        slopes, weights = random.standard_normal(NUMBERS), random.standard_normal(WEIGHTS)
        self._draw, self._seed = draw, np.uint64(mixed(np.uint64(source.seed)))
        self._constants = ids, stride, counts, np.log1p(counts), slopes, weights

    def draw(self, numbers: NDArray[np.int64], drawn: Drawn) -> None:
        """Make the samples with these numbers (n,) in memory for them."""
        self._draw(self._seed, numbers, *self._constants, *drawn)

    def logits(self, drawn: Drawn) -> NDArray[np.float64]:
        """Return the teacher's logits (n,)."""
        means, factors = self._scaling
        logits: NDArray[np.float64] = (drawn.parts - means) @ factors
        return logits + MEAN

    @cached_property
    def _scaling(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The means of the parts of the logits, and the factors by which the parts have their shares."""
        drawn = Drawn.empty(SCALING)
        self.draw(np.arange(SCALING), drawn)
        deviations = drawn.parts.std(0)
        return drawn.parts.mean(0), DEVIATION * np.sqrt(SHARES) / np.where(deviations > 0, deviations, np.inf)


class ClicksSplit(Split):
    """The samples 0, 1, ... of a stream; or -1, -2, ..., which tests have, whatever the number of training samples."""

    contiguous = by_parts = True

    def __init__(self, stream: Stream, samples: int, of_test: bool = False) -> None:
        self.samples, self._stream, self._of_test = samples, stream, of_test
        self._memory: dict[int, tuple[Drawn, NDArray[np.float32]]] = {}

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> Batch:
        size = len(indices)
        if size not in self._memory:
            self._memory[size] = Drawn.empty(size), np.empty((size, 1), np.float32)
        drawn, targets = self._memory[size]
        self._draw(indices, drawn)
        targets[:, 0] = drawn.uniforms < 1 / (1 + np.exp(-self._stream.logits(drawn)))
        return Batch(drawn.inputs, targets)

    def teacher(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the teacher's logits (n,) for the samples with these indices (n,): the best that can be learnt."""
        drawn = Drawn.empty(len(indices))
        self._draw(indices, drawn)
        return self._stream.logits(drawn)

    def _draw(self, indices: NDArray[np.int64], drawn: Drawn) -> None:
        if indices.min() < 0 or indices.max() >= self.samples:
            raise outside(indices, 0, self.samples)
        self._stream.draw(~indices if self._of_test else indices, drawn)

    def load(self) -> None:
        self.gather(np.zeros(1, np.int64))

    def copy(self) -> ClicksSplit:
        return ClicksSplit(self._stream, self.samples, self._of_test)
