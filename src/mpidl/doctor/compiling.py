"""`mpidl doctor --compile`: compiles all loops and kernels into Numba's cache, by small jobs that need them.

Loops that depend on more than a type, such as the dimension of a table's rows, are compiled where they are first used.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from mpidl.algorithms import ALGORITHMS
from mpidl.config import from_dict
from mpidl.errors import MpidlError
from mpidl.jit import COMPILATION
from mpidl.job.build import build
from mpidl.nn import ACTIVATIONS
from mpidl.rules import RULES
from mpidl.runs.one_process import OneProcess
from mpidl.runs.simulate import simulate
from mpidl.tables.distinct import owner
from mpidl.wire import FORMATS, parse

#: Types of parameters.
DTYPES = ("float32", "float64")
#: Dimension of the rows of tables: others are compiled in a job.
DIMENSION = 16
#: A line of a log of clicks, with texts of all the lengths that are hashed in different ways.
CLICK = "\t".join(["1", *"0123456789012", *["a"] * 25, "a" * 40])
CLOSED = (
    "Numba's cache can't be written: expected NUMBA_CACHE_DIR, the directory of the package or ~/.cache/numba to be "
    "writable"
)
Section = dict[str, Any]


def fill() -> str:
    """Fill Numba's cache, and return a line about it; raise MpidlError if it can't be written."""
    began = time.perf_counter()
    with (
        tempfile.TemporaryDirectory() as directory,
        open(os.devnull, "w") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
    ):
        for dtype in DTYPES:
            warm(dtype)
            for number, job in enumerate(jobs(Path(directory))):
                _run(job, {"dir": directory, "name": f"{dtype}-{number}", "steps": 4}, dtype)
    known, place = COMPILATION.loaded + COMPILATION.saved, os.path.commonpath(COMPILATION.places)
    return (
        f"compiled {COMPILATION.saved} functions in {time.perf_counter() - began:.0f} s; {known} for "
        f"{' and '.join(DTYPES)} are in {place}"
    )


def _run(job: Section, run: Section, dtype: str) -> None:
    """Train in this process, some steps."""
    if COMPILATION.lost:
        raise MpidlError(CLOSED)
    data = {"source": "synthetic", "samples": 64, "test_samples": 8}
    sections = {"run": run, "data": {} if "source" in job.get("data", {}) else data, "model": {"dtype": dtype}}
    config = from_dict(job | {name: own | job.get(name, {}) for name, own in sections.items()})
    if "virtual" in job:
        simulate(config, 3)
    else:
        OneProcess(build(config)).run()


def warm(dtype: str) -> None:
    """Compile rules, wire formats, and what only servers of their own do."""
    owner(np.arange(2), 2)
    for rule in RULES.values():
        for sparse in (False, True):
            for decay in (0.0, 1.0):
                rule().warm(dtype, sparse, decay)
    for wire in (*FORMATS, "topk:0.5"):
        if (encoding := parse(wire)) is not None:
            encoding.warm(dtype)


def jobs(directory: Path) -> Iterator[Section]:
    """Yield the configurations of small jobs."""
    convolution, dense = {"type": "conv2d", "channels": 8, "padding": "same"}, {"type": "dense", "units": 10}
    layers = [
        *({**convolution, "activation": activation} for activation in ACTIVATIONS),
        {**convolution, "size": 5},
        {"type": "conv2d", "channels": 4, "stride": 2, "groups": 2},
        {"type": "locally_connected2d", "channels": 4, "size": 2},
        *({"type": pooling, "size": 2, "stride": 1} for pooling in ("max_pool2d", "average_pool2d", "l2_pool2d")),
        {"type": "local_contrast_normalisation", "size": 3},
        {"type": "batch_normalisation"},
        {"type": "layer_normalisation"},
        {"type": "dropout"},
        dense,
        {"type": "layer_normalisation"},
        {"type": "batch_normalisation"},
        dense,
    ]
    changes = {"reflect": True, "translate": 1, "rotate": 5, "noise": 0.1}
    yield {"model": {"layer": layers}, "data": {"shape": [16, 16], "augment": changes}}
    for name, algorithm in ALGORITHMS.items():
        yield {"model": {} if algorithm.makes_model else {"layer": [dense]}, "algorithm": {"name": name}}
    yield {"model": {"layer": [dense]}, "virtual": {"compute": 0.1}}
    log = directory / "clicks"
    log.write_text(f"{CLICK}\n" * 64)
    numbers, ids = {"type": "columns", "first": 0, "count": 13}, {"type": "columns", "first": 13, "count": 26}
    embedding = {"type": "embedding", "sparse": True, "dimension": DIMENSION}
    for mode, admission in ({}, {}), ({"mode": "sum"}, {"admission": 2}), ({"mode": "max"}, {"admission": 0.5}):
        layers = [
            ids,
            {**embedding, **mode, "name": "rows"},
            {**numbers, "inputs": ["inputs"]},
            {"type": "embedding", "vocabulary": 100, "units": DIMENSION, "name": "others"},
            {"type": "interaction", "inputs": ["rows", "others"]},
            {"type": "dense", "units": 1},
        ]
        yield {
            "data": {"source": "click_log", "path": str(log), "test": str(log)},
            "model": {"layer": layers, "loss": "one_vs_all_logistic"},
            "tables": {"max_rows": 100, **admission},
        }
