"""The speed of a replica of several ranks, measured and predicted.

    python benchmarks/partition.py [--rounds 7] [--network local] [--ranks 2]
    python benchmarks/partition.py --predict

Starts ranks, and times forward and backward passes of networks over a minibatch, alternately whole on one rank and cut
over all. In each round it also measures the speeds of `mpidl doctor --save` on the same ranks, and predicts both times
from these. Figures are medians.

With --predict it starts no ranks: it predicts the time of a minibatch of DistBelief's networks on 1 to 128 machines,
each layer cut as in the paper, and draws Figure 3 of Dean et al. 2012 (needs Matplotlib). According to the paper,
machines used up to 20 cores for a model; other assumptions are printed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from harness import QUICK, RESULTS, parse, pyplot, require, save, start, table
from mpidl.config import toml
from mpidl.data.batch import Batch
from mpidl.errors import UsageError
from mpidl.launch import environment
from mpidl.nn import Dense, Layer, LocallyConnected2d, Network
from mpidl.nn.graph import Graph
from mpidl.nn.network import layer_from_section
from mpidl.partition.costs import Basis, Costs, plan_seconds
from mpidl.partition.network import CutNetwork
from mpidl.partition.planner import make_plan

JOBS = Path(__file__).parents[1] / "jobs"

#: The paper's smallest and largest network.
SPEECH, LARGEST = "speech: 42 million", "images: 1.7 thousand million"
#: Ranks of the predicted curves.
CURVE = (1, 2, 4, 8, 16, 32, 64, 81, 128)
#: Assumptions: samples of a minibatch; operations per second of 20 cores, 7.5 Gflop/s each; links of 1 Gbit/s, and
#: seconds of a message. Then other values of these, to see their influence.
BATCH = 100
FLOPS, LINK, LATENCY = 150e9, 1.25e8, 200e-6
OTHERS = ((100e9, 100e-6), (100e9, 200e-6), (150e9, 100e-6), (200e9, 100e-6), (200e9, 200e-6), (300e9, 100e-6))


def main() -> None:
    """Predict, start the ranks, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--predict", action="store_true", help="curves to 128 machines, without ranks")
    parser.add_argument("--rounds", type=int, default=7, help="timings of each case (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=2, help="ranks of the replica (default: %(default)s)")
    parser.add_argument("--network", choices=NETWORKS, help="one of them; both by default")
    options = parse(parser, rounds=1, network="local")
    if options.predict:
        require("matplotlib")
        curves()
    elif environment.world().size == 1:
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


# Predicted, on the paper's machines.


def curves() -> None:
    """Predict the curves, print and draw them, and print the predictions for other machines."""
    rows, lines = [], {}
    for name, (layers, shape) in of_the_paper().items():
        found = [predict(layers, shape, ranks, machines(FLOPS, LATENCY)) for ranks in CURVE]
        lines[name] = [found[0]["ms"] / each["ms"] for each in found]
        rows += [
            {"network": name, **each, "times as fast": times} for each, times in zip(found, lines[name], strict=True)
        ]
    print(
        f"assumed: minibatches of {BATCH}, {FLOPS / 1e9:.0f} Gflop/s a machine, {LINK * 8 / 1e9:g} Gbit/s, "
        f"{LATENCY * 1e6:.0f} us a message"
    )
    print(f"{table(rows)}\n\n{table(others())}")
    print(f"written to {save('partition-predicted', rows)} and {plot(lines)}")


def machines(flops: float, latency: float) -> Costs:
    """Return the costs of machines with links of `LINK`; layers without products take 50 operations per element."""
    return Costs(
        flops=flops, elements=flops / 50, parameter_bandwidth=1e10, between_bandwidth=LINK, between_latency=latency
    )


def predict(layers: list[Layer], shape: tuple[int, ...], ranks: int, costs: Costs) -> dict[str, Any]:
    """Return the milliseconds of a minibatch on `ranks` machines, and the bytes that the busiest of them sends."""
    cut = as_in_the_paper(layers, shape, ranks)
    plan = make_plan(cut, shape, ranks, batch=BATCH, costs=costs, ranks_per_node=1)
    sent = [sum(each) for each in zip(*(movement.sent for movement in plan.traffic(BATCH)), strict=True)]
    return {
        "parameters": plan.layout.size,
        "machines": ranks,
        "ms": 1e3 * plan_seconds(plan, Basis(BATCH, costs, 4, 1)),
        "MB sent by one": 4e-6 * max(sent, default=0),
    }


def others() -> list[dict[str, Any]]:
    """Return, by other assumptions, the best number of machines for speech, and the largest network's speed-up."""
    rows = []
    networks = of_the_paper()
    (speech, sound), (images, pixels) = networks[SPEECH], networks[LARGEST]
    for flops, latency in OTHERS:
        costs = machines(flops, latency)
        found = {ranks: predict(speech, sound, ranks, costs)["ms"] for ranks in CURVE}
        best = min(found, key=found.__getitem__)
        alone, cut = (predict(images, pixels, ranks, costs)["ms"] for ranks in (1, 81))
        rows.append(
            {
                "Gflop/s": flops / 1e9, "us a message": latency * 1e6, "speech: best on": best,
                "times as fast": found[1] / found[best], "1.7 thousand million on 81: times as fast": alone / cut,
            }
        )  # fmt: skip
    return rows


def of_the_paper() -> dict[str, tuple[list[Layer], tuple[int, ...]]]:
    """Return DistBelief's networks by name: layers and the shape of a sample."""
    speech, image = (toml.read(JOBS / f"distbelief_{name}.toml") for name in ("speech", "image"))
    found = {SPEECH: (from_sections(speech), tuple(speech["data"]["shape"]))}
    # Maps, stride of the first filters, and size and stride of pooling: see the job's file.
    for name, maps, pools in (
        ("images: 80 million", 16, ((2, 2), (2, 2), (2, 2))),
        ("images: 330 million", 16, ((2, 1), (2, 2), (2, 2))),
        (LARGEST, 36, ((2, 1), (2, 1), (6, 6))),
    ):
        layers = []
        for number, layer in enumerate(from_sections(image)):
            if layer.type == "locally_connected2d":
                layer = replace(layer, channels=maps, stride=1)
            if layer.type == "l2_pool2d":
                size, stride = pools[number // 3]
                layer = replace(layer, size=size, stride=stride)
            layers.append(layer)
        found[name] = layers, tuple(image["data"]["shape"])
    return found


def as_in_the_paper(layers: list[Layer], shape: tuple[int, ...], ranks: int) -> list[Layer]:
    """Return layers cut by tiles, dense ones by units; the planner chooses the cut of an image that is too small."""
    graph, found = Graph(layers, shape), []
    for index, layer in enumerate(layers):
        cut = "units" if layer.type == "dense" else "tiles"
        try:
            layer.pieces(cut, 0, ranks, *graph.input_shapes(index))
        except UsageError:
            cut = ""
        found.append(replace(layer, cut=cut))
    return found


def plot(lines: dict[str, list[float]]) -> Path:
    """Draw the speed-up of each network on more machines; return the file."""
    figure, axes = pyplot().subplots(figsize=(7, 4.5))
    for name, speedups in lines.items():
        axes.plot(CURVE, speedups, marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(CURVE, list(map(str, CURVE)))
    axes.set_xlabel("machines of a replica")
    axes.set_ylabel("speed-up over one machine")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    path = RESULTS / "partition.png"
    figure.savefig(path, dpi=120)
    return path


if __name__ == "__main__":
    main()
