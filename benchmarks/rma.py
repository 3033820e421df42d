"""Push and fetch against memcpy and a plain MPI send of the same bytes, and the cost of an idle server.

    python benchmarks/rma.py [--rounds 15]
    mpirun --hostfile FILE --map-by ppr:1:node -n 2 python benchmarks/rma.py

Starts two ranks, unless a launcher has: a worker and a server, as in a run, through windows on one node and by messages
between two. All cases take turns within each round:

- memcpy: the worker copies a gradient that it has just written to another vector;
- fetch: the worker fetches the server's parameters;
- push: the worker writes such a gradient into the server's mailbox, which frees its slots unread; between nodes the
  worker continues while the gradient travels;
- delivered: such a push until the server has received all of it;
- applied: such a push until the server has also applied it with Adagrad.

A send is timed before and after the rounds. Bandwidths count each byte once. The answer of an idle server is the time
from a chunk's delivery to its application.
"""

from __future__ import annotations

import argparse
import sys
import time
from statistics import median, quantiles
from typing import Any

import numpy as np

from harness import QUICK, parse, save, start, table
from mpidl.launch import environment
from mpidl.shards.policies import ApplyAtOnce, PushHeader

SIZES = [1 << bits for bits in range(16, 27, 2)][: 1 if QUICK else None]
#: Least bytes that each case moves per round: short transfers are repeated.
PER_ROUND = 4 << 20
CASES = ("memcpy", "fetch", "push", "delivered", "applied")
QUESTIONS = 200


def main() -> None:
    """Start the ranks, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="timings of each case (default: %(default)s)")
    parser.add_argument("--idle", type=float, default=2.0, help="seconds of an idle server (default: %(default)s)")
    arguments = parse(parser, rounds=1, idle=0.1)
    if environment.world().size == 1:
        sys.exit(start(2).returncode)
    from mpi4py import MPI

    from mpidl.doctor.windows import Pair

    pair = Pair(MPI.COMM_WORLD)
    rows = [row for size in SIZES if (row := transfer(pair, size, arguments.rounds))]
    idle = wait(pair, arguments.idle)
    if pair.origin:
        print(f"{table(rows)}\n\n{table([idle])}")
        print(f"written to {save('rma', [*rows, idle])}")


class EveryThird(ApplyAtOnce):
    """Apply every third push, that of the last case; free the slots of the others."""

    def apply_chunk(self, shard: Any, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        """Update the chunk's parameters, if the push is a third one."""
        if push.ordinal % 3 == 0:
            super().apply_chunk(shard, chunk, values, push)


def transfer(pair: Any, size: int, rounds: int) -> dict[str, Any] | None:
    """Return the table's row for transfers of `size` bytes; None on the server."""
    from mpidl.doctor.windows import sends
    from serving import ServerAndWorker

    served = ServerAndWorker(pair.comm, size // 4, EveryThird(), way="allocate" if pair.one_node else "messages")
    before = sends(pair, nbytes=size)[1]
    worker = Worker(served, size)
    served.run(lambda: worker.measure(rounds))
    row = worker.row() if pair.origin else None
    served.free()
    send = (before + sends(pair, nbytes=size)[1]) / 2 / 1e9
    if row is not None:
        row |= {"send GB/s": send} | {f"{case}/send": row[f"{case} GB/s"] / send for case in CASES[1:]}
    return row


class Worker:
    """The worker's vectors, and the timings of each case."""

    def __init__(self, served: Any, size: int) -> None:
        self._served, self._size = served, size
        self._repeats = max(1, PER_ROUND // size)
        self._gradient, self._copy, self._parameters = (np.zeros(size // 4, np.float32) for _ in range(3))
        self._seconds: dict[str, list[float]] = {case: [] for case in CASES}

    def measure(self, rounds: int) -> None:
        """Time the cases in turn; the first round warms up."""
        for number in range(rounds + 1):
            times = self._round()
            if number:
                for case, elapsed in times.items():
                    self._seconds[case].append(elapsed)

    def _round(self) -> dict[str, float]:
        """Return the median time of each case."""
        actions = {
            "memcpy": lambda: np.copyto(self._copy, self._gradient),
            "fetch": lambda: self._served.fetch(self._parameters),
            "push": lambda: self._served.push(self._gradient),
            "delivered": self._push_and_settle,
            "applied": self._push_and_settle,
        }
        times: dict[str, list[float]] = {case: [] for case in actions}
        for _ in range(self._repeats):
            for case, action in actions.items():
                self._gradient.fill(1e-3)
                start = time.perf_counter()
                action()
                times[case].append(time.perf_counter() - start)
                self._served.wait_applied()
        return {case: median(elapsed) for case, elapsed in times.items()}

    def _push_and_settle(self) -> None:
        self._served.push(self._gradient)
        self._served.wait_applied()

    def row(self) -> dict[str, Any]:
        """Return the medians as bandwidths, and as shares of memcpy's."""
        speed = {case: self._size / median(elapsed) / 1e9 for case, elapsed in self._seconds.items()}
        row: dict[str, Any] = {"KiB": self._size >> 10}
        for case in CASES:
            row[f"{case} GB/s"] = speed[case]
            if case != "memcpy":
                row[f"{case}/memcpy"] = speed[case] / speed["memcpy"]
        return row


def wait(pair: Any, seconds: float) -> dict[str, Any]:
    """Return the cost of an idle server, and the time that it takes to answer."""
    from serving import ServerAndWorker, answers, idle_share

    gradient = np.full(SIZES[0] // 4, 1e-3, np.float32)
    served = ServerAndWorker(pair.comm, gradient.size, way="allocate" if pair.one_node else "messages")
    share = idle_share(served, seconds)
    milliseconds = [1e3 * elapsed for elapsed in answers(served, pair, gradient, QUESTIONS)]
    served.free()
    return {
        "idle server": "one chunk of 64 KiB",
        "% of a core": 100 * share,
        "ms to answer": median(milliseconds),
        "ms to answer, p90": quantiles(milliseconds, n=10)[-1],
    }


if __name__ == "__main__":
    main()
