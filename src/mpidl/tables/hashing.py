"""The hash of ids, by which servers, buckets, first values and admissions are chosen."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.jit import jit


@jit
def mixed(number: Any) -> Any:
    """Return the hash of a 64-bit number.

    G. Steele, D. Lea, C. Flood 2014, Fast splittable pseudorandom number generators, with the constants of Java 8.
    """
    found = np.uint64(number) + np.uint64(0x9E3779B97F4A7C15)
    found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return found ^ (found >> np.uint64(31))
