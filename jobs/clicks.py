"""A stream of clicks on advertisements, made as it is read, with a known teacher; see clicks.toml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpidl.data import Batch, Dataset, Split
from mpidl.data.batch import outside
from mpidl.jit import jit

#: Numbers and ids of a sample.
NUMBERS, FEATURES = 13, 26
#: Numbers are between 0 and about e^7: their logarithms are uniform.
LARGEST_LOGARITHM = 7.0
#: Mean of the logits, their standard deviation, and the shares of their variance: of numbers, ids, and pairs of ids.
MEAN, DEVIATION, SHARES = -1.2, 1.4, (0.35, 0.63, 0.02)
#: Samples from which the parts of the logits get this mean and these variances.
SCALING = 1 << 14
GOLDEN = (5**0.5 - 1) / 2
#: Exponent of Zipf's law, and the power in the inverse of its integral.
EXPONENT, POWER = 1.05, 20
#: Number of values from which a teacher's weights are taken, and of different numbers.
WEIGHTS, LEVELS = 4096, 256
#: Rank at which an id's weight is half as large as it would be at the top: those of rare ids can't be learnt.
HALF = 20
#: Pairs of neighbouring features whose product, of two-dimensional vectors, is a part of the logit.
PAIRS = 2
#: Numbers of a sample in [0, 1).
UNIT = 2.0**-53
STEP = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Clicks:
    """A stream of clicks: 13 numbers, 26 ids and whether there was a click.

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
        Number of ids of all features together, at least 26, each of which has an equal part of them. They are in
        [0, ids).
    seed : int
        Seed of the samples and of the teacher.
    """

    samples: int = 10_000_000
    test_samples: int = 100_000
    ids: int = 10_000_000
    seed: int = 0

    def open(self) -> Dataset:
        stream = Stream(self)
        train, test = ClicksSplit(stream, self.samples), ClicksSplit(stream, self.test_samples, of_test=True)
        return Dataset("clicks", (NUMBERS + FEATURES,), None, train, test)


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
        random = np.random.default_rng(source.seed)
        ids = source.ids // FEATURES
        stride = round(GOLDEN * ids * FEATURES)
        while gcd(stride, ids * FEATURES) > 1:
            stride += 1
        counts = np.exp(LARGEST_LOGARITHM * (np.arange(LEVELS) + 0.5) / LEVELS).astype(np.int64) - 1
        slopes, weights = random.standard_normal(NUMBERS), random.standard_normal(WEIGHTS)
        self._seed = np.uint64(mixed(np.uint64(source.seed)))
        self._constants = ids, stride, counts, np.log1p(counts), slopes, weights

    def draw(self, numbers: NDArray[np.int64], drawn: Drawn) -> None:
        """Make the samples with these numbers (n,) in memory for them."""
        draw(self._seed, numbers, *self._constants, *drawn)

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


@jit
def mixed(bits: Any) -> Any:
    """Return 64 random bits: splitmix64's hash of `bits`."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@jit
def integral(x: Any) -> Any:
    """Return the integral of x^-EXPONENT from 1 to x."""
    return (1.0 - x ** (1.0 - EXPONENT)) * POWER


@jit
def inverse(area: Any) -> Any:
    """Return the x of an integral."""
    root = 1.0 - area * (1.0 / POWER)
    fourth = (root * root) * (root * root)
    sixteenth = (fourth * fourth) * (fourth * fourth)
    return 1.0 / (sixteenth * fourth)


@jit
def draw(  # type: ignore[no-untyped-def]
    seed, samples, ids, stride, counts, logarithms, slopes, weights, inputs, parts, uniforms
):
    """Draw samples.

    Ranks of ids follow Zipf's law by rejection-inversion (Hörmann and Derflinger, Rejection-inversion to generate
    variates from monotone discrete distributions, ACM TOMACS 6, 1996).

    Parameters
    ----------
    seed : uint64
    samples : array (n,) of int64
        The samples' numbers.
    ids : int
        Number of ids of a feature.
    stride : int
        Without a common divisor with the number of all ids.
    counts, logarithms : array (LEVELS,) of int64 and of float64
        Values of the numbers, all equally likely, and their logarithms.
    slopes : array (NUMBERS,) of float64
        Factors of these.
    weights : array (WEIGHTS,) of float64
        Weights of ids, to be multiplied by factors that fall with the rank.
    inputs : array (n, NUMBERS + FEATURES) of int64
        Overwritten with numbers and ids.
    parts : array (n, 3) of float64
        Overwritten with the sums over the numbers, over the ids, and over the pairs of ids.
    uniforms : array (n,) of float64
        Overwritten with random numbers in [0, 1).
    """
    first = integral(1.5) - 1.0
    width = integral(ids + 0.5) - first
    # A rank that is so little above its x, or below it, needs no other test.
    close = 2.0 - inverse(integral(2.5) - 2.0**-EXPONENT)
    total, last = FEATURES * ids, np.uint64(WEIGHTS - 1)
    for i in range(samples.size):
        state = mixed(np.uint64(samples[i]) * STEP + seed)
        bits, linear = np.uint64(0), 0.0
        for j in range(NUMBERS):
            if j % 8 == 0:
                state += STEP
                bits = mixed(state)
            level = bits & np.uint64(LEVELS - 1)
            bits >>= np.uint64(8)
            inputs[i, j] = counts[level]
            linear += slopes[j] * logarithms[level]
        alone = together = left_0 = left_1 = 0.0
        for feature in range(FEATURES):
            rank = 0
            while rank == 0:
                state += STEP
                area = first + np.float64(mixed(state) >> np.uint64(11)) * UNIT * width
                x = inverse(area)
                rank = min(max(int(x + 0.5), 1), ids)
                if rank - x > close and area < integral(rank + 0.5) - rank**-EXPONENT:
                    rank = 0
            id = (feature * ids + rank - 1) * stride % total
            inputs[i, NUMBERS + feature] = id
            bits = mixed(np.uint64(id) * STEP ^ seed)
            share = HALF / (HALF + rank - 1)
            alone += share * weights[bits & last]
            if feature < 2 * PAIRS:
                value_0 = share * weights[(bits >> np.uint64(16)) & last]
                value_1 = share * weights[(bits >> np.uint64(32)) & last]
                if feature % 2:
                    together += left_0 * value_0 + left_1 * value_1
                left_0, left_1 = value_0, value_1
        parts[i, 0], parts[i, 1], parts[i, 2] = linear, alone, together
        uniforms[i] = np.float64(mixed(state + STEP) >> np.uint64(11)) * UNIT


def stream() -> Dataset:
    """Return the data."""
    return Clicks().open()
