"""The loops that draw a click stream's samples: each from a hash of its number."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.data.click_log import FEATURES, NUMBERS
from mpidl.jit import jit

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
