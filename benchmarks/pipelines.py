"""How fast stages compute micro-batches, and how long they idle.

    python benchmarks/pipelines.py [--rounds 7] [--ranks 2] [--micro-batches 8]

Divides a network of equal dense layers into as many stages as it starts ranks, and times forward and backward passes
over a minibatch, whole on one rank and by each schedule on all, in turn. Medians count. A rank idles while it waits
for what others send; the formula is that of stages whose forward pass takes as long as either part of the way back.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from harness import save, start, table
from mpidl.data.batch import Batch
from mpidl.launch import environment
from mpidl.nn import Dense, Network
from mpidl.partition.group import Message
from mpidl.partition.network import CutNetwork
from mpidl.partition.planner import make_plan
from mpidl.partition.schedules import SCHEDULES
from mpidl.partition.schedules.timeline import Durations, timeline

#: Units of each layer, layers of each stage, and samples of a micro-batch.
UNITS, LAYERS, SAMPLES = 1024, 3, 64


def main() -> None:
    """Start the ranks, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="timings of each case (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="stages, a rank each (default: %(default)s)")
    parser.add_argument("--micro-batches", type=int, default=8, help="of a minibatch (default: %(default)s)")
    options = parser.parse_args()
    if environment.world().size == 1:
        sys.exit(start(options.ranks))
    measure(options.rounds, options.micro_batches)


class Timed:
    """A group that counts the seconds in which its rank waits for others."""

    def __init__(self, group: Any) -> None:
        self._group, self.waited = group, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def receive(self, source: int, array: np.ndarray, tag: int) -> Message:
        """See `Group`."""
        message = self._group.receive(source, array, tag)
        return message._replace(wait=lambda: self._count(message.wait))

    def send(self, to: int, array: np.ndarray, tag: int) -> Message:
        """See `Group`."""
        message = self._group.send(to, array, tag)
        return message._replace(wait=lambda: self._count(message.wait))

    def sum(self, array: Any) -> None:
        """See `Group`."""
        self._count(lambda: self._group.sum(array))

    def _count(self, action: Callable[[], Any]) -> None:
        start = time.perf_counter()
        action()
        self.waited += time.perf_counter() - start


def measure(rounds: int, micro_batches: int) -> None:
    """Time the schedules, print the table on rank 0 and save it."""
    from mpi4py import MPI

    from mpidl.engines.mpi.group import MpiGroup

    comm = MPI.COMM_WORLD
    layers, samples = [Dense(UNITS, "relu") for _ in range(LAYERS * comm.size)], SAMPLES * micro_batches
    plan = make_plan(layers, (UNITS,), comm.size, batch=samples, stages=comm.size)
    random = np.random.default_rng(0)
    inputs, targets = random.random((samples, UNITS), np.float32), random.integers(UNITS, size=samples)
    batch, group = Batch(inputs, targets), Timed(MpiGroup(comm))
    cut = {
        name: CutNetwork(Network(layers, (UNITS,)), plan, comm.rank, schedule=name, micro_batches=micro_batches)
        for name in SCHEDULES
    }
    for model in cut.values():
        model.bind(group)
        model.loss_and_gradient(batch)
    whole = Network(layers, (UNITS,)) if comm.rank == 0 else None
    if whole is not None:
        whole.loss_and_gradient(batch)
    seconds: dict[str, list[float]] = {name: [] for name in ("whole", *cut)}
    idle: dict[str, list[float]] = {name: [] for name in cut}
    for _ in range(rounds):
        for name in seconds:
            wait(comm)
            group.waited, begin = 0.0, time.perf_counter()
            if name != "whole":
                cut[name].loss_and_gradient(batch)
            elif whole is not None:
                whole.loss_and_gradient(batch)
            own = time.perf_counter() - begin
            seconds[name].append(own if name == "whole" else comm.allreduce(own, MPI.MAX))
            if name != "whole":
                idle[name].append(1 - comm.allreduce(own - group.waited) / comm.size / seconds[name][-1])
    if comm.rank == 0:
        rows = [
            {
                "schedule": name,
                "stages": 1 if name == "whole" else comm.size,
                "micro-batches": 1 if name == "whole" else micro_batches,
                "samples/s": samples / median(found),
                "times as fast": median(a / b for a, b in zip(seconds["whole"], found, strict=True)),
                "idle": None if name == "whole" else median(idle[name]),
                "by the formula": None if name == "whole" else formula(name, comm.size, micro_batches),
            }
            for name, found in seconds.items()
        ]
        print(table(rows))
        print(f"written to {save('pipelines', rows)}")


def formula(schedule: str, stages: int, micro_batches: int) -> float:
    """Return the share of the stages' time in which they idle, if all parts of their work take as long."""
    return timeline(SCHEDULES[schedule], micro_batches, [Durations(1, 1, 1)] * stages).bubble


def wait(comm: Any) -> None:
    """Wait for all ranks; those that came first sleep."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(1e-3)


if __name__ == "__main__":
    main()
