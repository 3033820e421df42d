"""Tables of rows by id: a server's core against NumPy, a table that grows and evicts, and training against PyTorch.

    python benchmarks/sparse.py [--only table pytorch ddp ahead profile]

table
    Lookups and updates per second of one core, of 8192 of a million ids, against NumPy on arrays of the same rows: a
    gather into memory that is there, and one update in NumPy for each rule. Then 1e8 ids, each of them new, of which
    1e7 are kept, in updates of 8192: memory per row, and by how much the longest update exceeds the median one. Seconds
    are the thread's CPU time; the last part runs twice, and the faster one counts for each update. In five minutes.

pytorch, ddp
    Samples per second of a PyTorch module: sums of bags of 26 ids of a million, by Zipf's law, with rows of 16, and two
    dense layers; batches of 2048, Adam. mpidl in one process against a plain loop with `torch.optim.SparseAdam`, and on
    2 workers, a server and a coordinator against DistributedDataParallel over gloo with sparse gradients.

ahead
    Samples per second of one worker whose gradients take 20 ms, as rows do on their way to it (both are made to), with
    rows fetched one batch ahead and without.

profile
    Where the processor time of the ranks of ddp goes, by phase. It isn't a part of the default.

Prints ratios, and writes them to results/sparse.json.
"""

from __future__ import annotations

import argparse
import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness import QUICK, parse, save, table
from mpidl.rules import Adagrad, Rule, Sgd
from mpidl.tables.lookups import TableSpec
from mpidl.tables.table import Table
from sparse_training import ahead, alone, by_phase, distributed

Row = dict[str, Any]
REAL = np.dtype(np.float32)
DIMENSION, RATE = 16, 0.01
SPEC = TableSpec("users", DIMENSION)
#: Ids of an update.
BATCH = 64 if QUICK else 8192
ROWS = 1000 if QUICK else 1_000_000
SEEN, KEPT = (10_000, 1000) if QUICK else (100_000_000, 10_000_000)
#: Most bytes of a row: its values and states, and 24 more, and what an index takes.
BOUND = 1.3 * (2 * DIMENSION * REAL.itemsize + 24)


def main() -> None:
    """Run the parts, print their tables and save them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="*", choices=list(PARTS), default=[*PARTS][:-1], help="default: all but profile"
    )
    options = parse(parser, only=["table"])
    found = {name: PARTS[name]() for name in options.only}
    for tables in found.values():
        for rows in tables:
            print(table(rows))
    print(f"written to {save('sparse', [row for tables in found.values() for rows in tables for row in rows])}")


def of_a_table() -> list[list[Row]]:
    """Return the figures of a server's part of a table."""
    return [[row for rule in (Sgd(RATE), Adagrad(RATE)) for row in speed(rule)], [growth()]]


def speed(rule: Rule) -> Iterator[Row]:
    """Yield lookups and updates per second, beside NumPy's."""
    random = np.random.default_rng(0)
    rows = Table(SPEC, rule, max_rows=ROWS)
    ids = random.permutation(ROWS) * 8191
    gradients, found = np.ones((BATCH, DIMENSION), REAL), np.empty((BATCH, DIMENSION), REAL)
    for start in range(0, ROWS, BATCH):
        own = ids[start : start + BATCH]
        rows.update(own, gradients[: own.size], 1)
    values, sums = np.ones((2, ROWS, DIMENSION), REAL)
    places = [random.choice(ROWS, BATCH, replace=False) for _ in range(20)]
    chosen = [ids[own] for own in places]
    cases = {
        "lookups": (partial(rows.read, found=found), partial(np.take, values, axis=0, out=found, mode="clip")),
        "updates": (
            partial(rows.update, gradients=gradients, step=2),
            partial(in_numpy, rule, values, sums, gradients),
        ),
    }
    for name, (ours, theirs) in cases.items():
        own, numpys = seconds(ours, chosen), seconds(theirs, places)
        yield {
            "rule": rule.name,
            "case": name,
            "1e6/s": BATCH / own / 1e6,
            "NumPy 1e6/s": BATCH / numpys / 1e6,
            "of NumPy": numpys / own,
        }


def in_numpy(rule: Rule, values: np.ndarray, sums: np.ndarray, gradients: np.ndarray, own: np.ndarray) -> None:
    """Update rows by a rule."""
    if isinstance(rule, Sgd):
        values[own] -= RATE * gradients
        return
    summed = sums[own] + gradients * gradients
    sums[own] = summed
    values[own] -= RATE * gradients / np.sqrt(summed)


def seconds(call: Callable[[np.ndarray], Any], batches: list[np.ndarray]) -> float:
    """Return the CPU time of a call, in the fastest of several rounds: others may use the machine's caches."""
    times = []
    for _ in range(10):
        start = time.thread_time()
        for batch in batches:
            call(batch)
        times.append((time.thread_time() - start) / len(batches))
    return min(times)


def growth() -> Row:
    """Return what a table takes that keeps a part of the ids it sees."""
    # A virtual machine may get its memory from the host only when it is first written.
    np.ones(2 * KEPT * int(BOUND) // 8)
    (times, nbytes), (others, _) = grown(), grown()
    # What takes an update long takes it long in both runs, unless it is another process.
    updates = np.minimum(times, others)
    return {
        "ids": SEEN,
        "rows": KEPT,
        "bytes/row": nbytes,
        "of bound": nbytes / BOUND,
        "update ms": 1e3 * float(np.median(updates)),
        "longest ms": 1e3 * float(updates.max()),
        "beyond ms": 1e3 * float(updates.max() - np.median(updates)),
    }


def grown() -> tuple[np.ndarray, float]:
    """Return the seconds of each update of a table that grows, and its bytes per row at the end."""
    rows = Table(SPEC, Adagrad(RATE), max_rows=KEPT)
    rows.warm()
    gradients, times, before = np.ones((BATCH, DIMENSION), REAL), [], resident()
    for step, start in enumerate(range(0, SEEN, BATCH), 1):
        ids = np.arange(start, start + BATCH) * 8191
        begin = time.thread_time()
        rows.update(ids, gradients, step)
        times.append(time.thread_time() - begin)
    return np.array(times), (resident() - before) / len(rows)


def resident() -> int:
    """Return the bytes of memory that the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


#: What each part returns: tables of figures.
PARTS: dict[str, Callable[[], list[list[Row]]]] = {
    "table": of_a_table,
    "pytorch": alone,
    "ddp": distributed,
    "ahead": ahead,
    "profile": by_phase,
}

if __name__ == "__main__":
    main()
