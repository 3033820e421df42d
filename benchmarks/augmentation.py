"""Gathering a batch of bytes and augmenting it, by what is done to it: at once, and prepared by a thread.

    python benchmarks/augmentation.py [--rounds 100]

Milliseconds that `gather` takes of 128 samples in a random order. "prepared" is what is left of it where the batch was
hinted at before the one before it was used, here for 5 ms of matrix products on this thread.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import numpy as np

from harness import save, table
from mpidl.data import ArraySplit, Augmentation, Augmented, Split

BATCH = 128
SAMPLES = 50 * BATCH
SHAPES = [(28, 28), (32, 32, 3)]
CASES = {
    "nothing": Augmentation(),
    "reflect, translate": Augmentation(reflect=True, translate=3),
    "rotate": Augmentation(rotate=15.0),
    "noise": Augmentation(noise=0.1),
    "all": Augmentation(reflect=True, rotate=15.0, translate=3, noise=0.1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="batches of each case (default: %(default)s)")
    arguments = parser.parse_args()
    rows = [row for shape in SHAPES for row in measure(shape, arguments.rounds)]
    print(table(rows))
    print(f"written to {save('augmentation', rows)}")


def measure(shape: tuple[int, ...], rounds: int) -> list[dict[str, Any]]:
    """Return a row for each case, after one for the samples as they are."""
    random = np.random.default_rng(0)
    inputs = random.integers(0, 256, (SAMPLES, *shape), np.uint8)
    order = random.permutation(SAMPLES).reshape(-1, BATCH)
    plain = ArraySplit(inputs, np.zeros(SAMPLES, int))
    rows = [{"inputs": shape, "case": "not augmented", "at once ms": timed(plain, order, rounds), "prepared ms": None}]
    for name, augmentation in CASES.items():
        split = Augmented(plain, augmentation, 0)
        split.load()
        at_once, prepared = (timed(split, order, rounds, hint) for hint in (False, True))
        rows.append({"inputs": shape, "case": name, "at once ms": at_once, "prepared ms": prepared})
    return rows


def timed(split: Split, order: np.ndarray, rounds: int, hint: bool = False) -> float:
    """Return the median milliseconds of `gather`."""
    weights = np.ones((256, 256), np.float32)
    seconds = []
    for number in range(rounds):
        if hint:
            split.prepare(order[(number + 1) % len(order)])
        start = time.perf_counter()
        split.gather(order[number % len(order)])
        seconds.append(time.perf_counter() - start)
        while time.perf_counter() < start + 5e-3:
            weights @ weights
    return 1e3 * median(seconds)


if __name__ == "__main__":
    main()
