"""The speed of a replica of several ranks, measured and predicted.

    python benchmarks/partition.py [--rounds 7] [--network local] [--ranks 2]

Starts ranks, and times forward and backward passes of networks over a minibatch, alternately whole on one rank and cut
over all. In each round it also measures the speeds of `mpidl doctor --save` on the same ranks, and predicts both times
from these. Figures are medians.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from harness import QUICK, parse, save, start, table
from mpidl.config import toml
from mpidl.data.batch import Batch
from mpidl.launch import environment
from mpidl.nn import Dense, Layer, LocallyConnected2d, Network
from mpidl.nn.network import layer_from_section
from mpidl.partition.costs import Basis, Costs, plan_seconds
from mpidl.partition.network import CutNetwork
from mpidl.partition.planner import make_plan

JOBS = Path(__file__).parents[1] / "jobs"


def main() -> None:
    """Start the ranks, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="timings of each case (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="ranks of the replica (default: %(default)s)")
    parser.add_argument("--network", choices=NETWORKS, help="one of them; both by default")
    options = parse(parser, rounds=1, network="local")
    if environment.world().size == 1:
        sys.exit(start(options.ranks).returncode)
    else:
        measure([options.network] if options.network else list(NETWORKS), options.rounds)


# The networks: layers, shape of a sample, samples of a minibatch.


def local() -> tuple[list[Layer], tuple[int, ...], int]:
    """Locally connected layers as in DistBelief's image network, 15 million parameters."""
    layers = [LocallyConnected2d(16, 5, "relu") for _ in range(3)]
    return [*layers, Dense(10)], (36, 36, 16), 2 if QUICK else 32


def speech() -> tuple[list[Layer], tuple[int, ...], int]:
    """DistBelief's speech network, 42 million parameters."""
    sections = toml.read(JOBS / "distbelief_speech.toml")
    return from_sections(sections), tuple(sections["data"]["shape"]), sections["data"]["batch"]


def from_sections(sections: dict[str, Any]) -> list[Layer]:
    """Return the layers of a job."""
    return [layer_from_section(each, f"layer[{i}]") for i, each in enumerate(sections["model"]["layer"])]


NETWORKS: dict[str, Callable[[], tuple[list[Layer], tuple[int, ...], int]]] = {"local": local, "speech": speech}


# Measured and predicted, on these ranks.


def measure(names: list[str], rounds: int) -> None:
    """Time the networks, print the table on rank 0 and save it."""
    from mpi4py import MPI

    rows = [row for name in names for row in Case(MPI.COMM_WORLD, name).rows(rounds)]
    if MPI.COMM_WORLD.rank == 0:
        print(table(rows))
        print(f"written to {save('partition', rows)}")


class Case:
    """A network, whole and cut."""

    def __init__(self, comm: Any, name: str) -> None:
        from mpidl.engines.mpi.group import MpiGroup

        self._comm, self._name = comm, name
        layers, shape, samples = NETWORKS[name]()
        self._layers, self._shape, self._samples = layers, shape, samples
        network = Network(layers, shape, seed=0)
        costs = comm.bcast(self._costs())
        self._whole = make_plan(layers, shape, 1, batch=samples, costs=costs)
        self._plan = make_plan(layers, shape, comm.size, batch=samples, costs=costs)
        self._cut = CutNetwork(Network(layers, shape, seed=0), self._plan, comm.rank)
        self._cut.bind(MpiGroup(comm))
        random = np.random.default_rng(0)
        targets = random.integers(network.output_shape[-1], size=samples)
        self._batch = Batch(random.random((samples, *shape), np.float32), targets)
        self._network = network if comm.rank == 0 else None
        expected = None if self._network is None else self._network.loss_and_gradient(self._batch)[0]
        assert np.isclose(self._cut.loss_and_gradient(self._batch)[0], comm.bcast(expected), rtol=1e-4)

    def rows(self, rounds: int) -> list[dict[str, Any]]:
        """Return a row for the whole network and one for the cut one."""
        seconds: dict[str, list[float]] = {"whole": [], "cut": []}
        predicted: dict[str, list[float]] = {"whole": [], "cut": []}
        for _ in range(rounds):
            basis = Basis(self._samples, self._costs(), 4)
            for key, plan in (("whole", self._whole), ("cut", self._plan)):
                predicted[key].append(plan_seconds(plan, basis))
                seconds[key].append(self._time(key))
        cuts = " ".join(step.cut for step in self._plan.steps)
        return [
            {
                "network": self._name,
                "ranks": ranks,
                "ms": 1e3 * median(seconds[key]),
                "least": 1e3 * min(seconds[key]),
                "predicted ms": 1e3 * median(predicted[key]),
                "predicted / measured": median(a / b for a, b in zip(predicted[key], seconds[key], strict=True)),
                "times as fast": median(a / b for a, b in zip(seconds["whole"], seconds[key], strict=True)),
                "cuts": cuts if key == "cut" else "",
            }
            for key, ranks in (("whole", 1), ("cut", self._comm.size))
        ]

    def _time(self, key: str) -> float:
        """Return the median seconds of a few minibatches; the other ranks sleep while one has the whole network."""
        times = []
        for _ in range(5):
            self._wait()
            start = time.perf_counter()
            if key == "cut":
                self._cut.loss_and_gradient(self._batch)
            elif self._network is not None:
                self._network.loss_and_gradient(self._batch)
            times.append(time.perf_counter() - start)
        return median(times)

    def _wait(self) -> None:
        request = self._comm.Ibarrier()
        while not request.Test():
            time.sleep(1e-3)

    def _costs(self) -> Costs:
        """Measure the doctor's speeds, on all ranks."""
        from mpidl.doctor.measuring import speeds
        from mpidl.doctor.windows import Pair, sends

        found = speeds()
        pair = self._comm.Split(self._comm.rank // 2)
        latency, bandwidth = sends(Pair(pair)) if pair.size == 2 else (0.0, 1.0)
        pair.Free()
        return Costs(bandwidth=bandwidth, latency=latency, **found)


if __name__ == "__main__":
    main()
