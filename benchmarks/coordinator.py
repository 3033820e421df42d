"""Tickets, posts and looks at orders per second of a coordinator whose workers do nothing else.

    python benchmarks/coordinator.py [--ranks 4] [--transport messages]
    mpirun --hostfile FILE -n 4 python benchmarks/coordinator.py

Rank 0 is the coordinator and looks at the totals as it does in a run, rank 1 is an idle server, all others are workers.
A ticket and a look wait for the answer. Posts do not, so that a look follows every 50 of them. Each worker has one
request under way: with few workers the figures are latencies, with many the coordinator's throughput. Prints a table,
and writes it to results/coordinator.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from harness import parse, save, start, table
from mpidl.launch import environment

#: Posts before a look, which waits until the coordinator has taken them.
POSTS = 50


def main() -> None:
    """Start the ranks, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4, help="unless a launcher starts them (default: %(default)s)")
    parser.add_argument("--transport", choices=("windows", "messages", "mixed"), default="messages")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each case (default: %(default)s)")
    arguments = parse(parser, seconds=0.1)
    if environment.world().size == 1:
        sys.exit(start(arguments.ranks).returncode)
    rows = measure(arguments.transport, arguments.seconds)
    if rows:
        print(table(rows))
        print(f"written to {save('coordinator', rows)}")


def measure(transport: str, seconds: float) -> list[dict[str, Any]]:
    """Return the table's rows on the coordinator, and none on other ranks."""
    from mpi4py import MPI

    from mpidl.parameters.ranges import Range
    from mpidl.rma.transport import Transport
    from mpidl.topology.roles import Roles
    from mpidl.transport.capacity import Capacity

    comm = MPI.COMM_WORLD
    roles = Roles((1,), tuple((rank,) for rank in range(2, comm.size)))
    shared = Transport(comm, roles, Capacity([Range(0, 1000)], np.dtype(np.float32)), way=transport)
    number = comm.rank - 2
    cases = Cases(shared.worker(number)) if number >= 0 else None
    look = shared.coordinator().posted.look if comm.rank == 0 else lambda: None
    shared.quiesce()
    rows = []
    for name in ("ticket", "look", "post"):
        spent = [] if cases is None else repeat(getattr(cases, name), seconds)
        wait(comm, shared.backoff(), look)
        found = comm.gather(spent)
        if found:
            times = np.concatenate([np.asarray(each) for each in found])
            count = len(times) * (POSTS if name == "post" else 1)
            rows.append(
                {
                    "transport": transport, "workers": comm.size - 2, "request": name, "per second": count / seconds,
                    "median us": median(times) * 1e6, "99 % us": float(np.quantile(times, 0.99)) * 1e6,
                }
            )  # fmt: skip
    shared.free()
    return rows


class Cases:
    """A worker's requests to the coordinator."""

    def __init__(self, link: Any) -> None:
        from mpidl.transport.protocol import WORKER_STATUS

        self._link, self._status = link, np.zeros(1, WORKER_STATUS)

    def ticket(self) -> None:
        """Take a ticket."""
        self._link.tickets.take()

    def look(self) -> None:
        """Look at the coordinator's order."""
        self._link.orders.read()

    def post(self) -> None:
        """Post the status many times, and wait until it has arrived."""
        for _ in range(POSTS):
            self._status["samples"] += 1  # An unchanged status is not posted.
            self._link.reports.post(self._status)
        self._link.orders.read()


def repeat(case: Callable[[], None], seconds: float) -> list[float]:
    """Call `case` repeatedly for some seconds; return the duration of each call."""
    spent, end = [], time.perf_counter() + seconds
    while (started := time.perf_counter()) < end:
        case()
        spent.append(time.perf_counter() - started)
    return spent


def wait(comm: Any, backoff: Any, look: Callable[[], None]) -> None:
    """Wait for all ranks, as coordinator and servers wait in a run."""
    barrier = comm.Ibarrier()
    while not barrier.Test():
        look()
        backoff.pause()


if __name__ == "__main__":
    main()
