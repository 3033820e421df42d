"""Common functions of models of PyTorch and of JAX."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import xxhash

__all__ = ["correct_classes", "parts", "seed_of_batch", "share_of_total"]


def seed_of_batch(seed: int, number: int) -> int:
    """Return the seed, of 32 bits, of a model's random numbers for batch `number` of a run."""
    return xxhash.xxh32_intdigest(struct.pack("<QQ", seed % 2**64, number))


def parts(samples: int, count: int) -> Iterator[tuple[slice, float]]:
    """Yield at most `count` parts of a number of samples, each with its share of them."""
    size = -(-samples // count)
    for start in range(0, samples, size):
        stop = min(start + size, samples)
        yield slice(start, stop), (stop - start) / samples


def correct_classes(outputs: Any, targets: Any, axis: int, total: float) -> float:
    """Return the share of the targets, class ids, at the largest output, times the batch's weight `total`.

    Ids below 0 don't count. The outputs, arrays or tensors, have the targets' axes and `axis` for the classes.
    """
    counted = targets >= 0
    right = (outputs.argmax(axis) == targets) & counted
    return share_of_total(float(right.sum()), float(counted.sum()), total)


def share_of_total(right: float, count: float, total: float) -> float:
    """Return the share `right` of `count` times the batch's weight."""
    return right if count == total else right / max(count, 1) * total
