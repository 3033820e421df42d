"""Encoding and decoding a chunk of a push in each wire format, against memcpy, one thread.

    python benchmarks/wire.py [--rounds 25]

GB/s are bytes of the gradient, before it is encoded, per second; memcpy's are bytes copied. The residual is read and
written too. The chunk is as large as chunks are, and in the cache, as it is when a worker encodes what it has computed.
`np.argpartition` finds which elements `topk:0.01` sends, and nothing else: its figure is beside encoding.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from harness import interleave, save, table
from mpidl.wire import Wire, parse

MEMCPY = "memcpy"
ARGPARTITION = "np.argpartition"
FORMATS = ["bf16", "int8", "topk:0.001", "topk:0.01", "topk:0.1", "onebit"]
#: Elements of a chunk; its bytes are the same.
CHUNKS = {"float32": 131072, "float64": 65536}
#: How often a case is called in one timing.
REPEATS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25, help="timings of each case (default: %(default)s)")
    arguments = parser.parse_args()
    rows = [row for dtype in CHUNKS for row in measure(dtype, arguments.rounds)]
    print(table(rows))
    print(f"written to {save('wire', rows)}")


def measure(dtype: str, rounds: int) -> list[dict[str, Any]]:
    """Return a row for each format, and for what it is compared with."""
    values = np.random.default_rng(0).normal(size=CHUNKS[dtype]).astype(dtype)
    decoded = np.empty_like(values)
    wires = {name: wire for name in FORMATS if (wire := parse(name)) is not None}
    cases: dict[tuple[str, str], Callable[[], Any]] = {
        (MEMCPY, "encode"): partial(np.copyto, decoded, values),
        (ARGPARTITION, "encode"): partial(argpartition, values, round(0.01 * values.size)),
    }
    for name, wire in wires.items():
        cases |= {(name, way): case for way, case in cases_of(wire, values, decoded).items()}
    named = {" ".join(key): partial(repeat, case) for key, case in cases.items()}
    seconds = {name: median(times) / REPEATS for name, times in interleave(named, rounds).items()}

    def row(name: str, size: int | None) -> dict[str, Any]:
        encode, decode = (seconds.get(f"{name} {way}") for way in ("encode", "decode"))
        return {
            "dtype": dtype,
            "case": name,
            "of the bytes": size and size / values.nbytes,
            "encode us": encode and encode * 1e6,
            "encode GB/s": encode and values.nbytes / encode / 1e9,
            "decode us": decode and decode * 1e6,
            "decode GB/s": decode and values.nbytes / decode / 1e9,
        }

    sizes = {MEMCPY: values.nbytes, ARGPARTITION: None}
    sizes |= {name: wire.size(values.size, values.dtype) for name, wire in wires.items()}
    return [row(name, size) for name, size in sizes.items()]


def cases_of(wire: Wire, values: np.ndarray, decoded: np.ndarray) -> dict[str, Callable[[], None]]:
    """Return what is timed of a format, compiled, the bytes to decode in place."""
    data = np.empty(wire.size(values.size, values.dtype), np.uint8)
    cases = {
        "encode": partial(wire.encode, values, np.zeros_like(values), data),
        "decode": partial(wire.decode, data, decoded),
    }
    for case in cases.values():
        case()
    return cases


def argpartition(values: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the `count` largest magnitudes."""
    return np.argpartition(np.abs(values), values.size - count)[-count:]


def repeat(case: Callable[[], Any]) -> None:
    """Call a case some times."""
    for _ in range(REPEATS):
        case()


if __name__ == "__main__":
    main()
